-- launch_stats: how long kernels wait for their start after the host launched them, and how many wait at a time.
--
-- One row is one kind of runtime call on one device. The delay goes from the start of the call to the start of the work:
-- where it is long, the GPU is behind the host and never idle for want of launches; where it is as short as a launch takes
-- (some microseconds), the GPU waits for the host. The queue depth is how much work was launched and had not started when
-- a call began. Work that starts before its launch, which clocks that differ make, is counted and left out of the delays.
--
-- Empty: not recorded: no launch in these traces is tied to GPU work
-- Example: traceanalyzer query STORE launch_stats --rank 0
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   device (number): index of the GPU as the collector numbers it
--   call (text): name of the runtime call
--   calls (count, summed): calls that launched work
--   events (count, summed): pieces of work that they launched
--   events_per_call (number): of a graph's launch many
--   before_launch (count, summed): pieces of work that start before the call that launched them
--   mean_delay_ns (ns): mean delay of the others
--   median_delay_ns (ns): median delay of the others
--   min_delay_ns (ns): shortest delay of the others
--   max_delay_ns (ns): longest delay of the others
--   mean_depth (number): queue depth at the calls, the mean; the call's own work not counted
--   max_depth (number): the greatest
WITH linked AS (
    SELECT
        e.run, e.collector, e.rank, e.part, e.trace_id, e.device, e.start_ns, c.event_id AS call_event_id, c.name AS call,
        c.start_ns AS call_ns
    FROM gpu_events AS e
    JOIN runtime_calls AS c ON c.run = e.run AND c.trace_id = e.trace_id AND c.event_id = e.runtime_event_id
    WHERE is_timed(e.defect)
),
edges AS (
    -- launched: one more waits; started: one less. At one moment starts come first.
    SELECT run, trace_id, device, call_ns AS t_ns, call_event_id, 1 AS waiting
    FROM linked
    WHERE start_ns >= call_ns
    UNION ALL
    SELECT run, trace_id, device, start_ns AS t_ns, -1 AS call_event_id, -1 AS waiting
    FROM linked
    WHERE start_ns >= call_ns
),
depths AS (
    SELECT run, trace_id, device, call_event_id, min(depth) AS depth
    FROM (
        SELECT
            run, trace_id, device, call_event_id,
            sum(waiting) OVER (
                PARTITION BY run, trace_id, device ORDER BY t_ns, call_event_id ROWS UNBOUNDED PRECEDING
            ) - 1 AS depth
        FROM edges
    )
    WHERE call_event_id >= 0
    GROUP BY run, trace_id, device, call_event_id
),
per_call AS (
    SELECT run, trace_id, device, call, avg(depth) AS mean_depth, max(depth) AS max_depth
    FROM (SELECT DISTINCT run, trace_id, device, call, call_event_id FROM linked)
    JOIN depths USING (run, trace_id, device, call_event_id)
    GROUP BY run, trace_id, device, call
),
delays AS (
    SELECT
        run, collector, rank, part, trace_id, device, call,
        count(DISTINCT call_event_id) AS calls, count(*) AS events,
        count(*) FILTER (start_ns < call_ns) AS before_launch,
        avg(start_ns - call_ns) FILTER (start_ns >= call_ns) AS mean_delay_ns,
        quantile_disc(start_ns - call_ns, 0.5) FILTER (start_ns >= call_ns) AS median_delay_ns,
        min(start_ns - call_ns) FILTER (start_ns >= call_ns) AS min_delay_ns,
        max(start_ns - call_ns) FILTER (start_ns >= call_ns) AS max_delay_ns
    FROM linked
    GROUP BY run, collector, rank, part, trace_id, device, call
)
SELECT
    run, collector, rank, part, device, call, calls, events, events / calls AS events_per_call, before_launch,
    mean_delay_ns, median_delay_ns, min_delay_ns, max_delay_ns, mean_depth, max_depth::BIGINT AS max_depth
FROM delays
LEFT JOIN per_call USING (run, trace_id, device, call)
ORDER BY run, collector, rank, part, device, events DESC, call
