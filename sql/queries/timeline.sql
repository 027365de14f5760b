-- timeline: where the window of each GPU went.
--
-- One row is one device of one trace; by=rank, one trace; by=run, one statistic over the traces of a run; by=step, one
-- step of one device.
-- All times are exact unions of half-open intervals [start, end), never sums. With C, M and P the unions of the
-- intervals of class computation, communication and memcpy:
-- computation = |C|, communication = |M|, exposed communication = |M without C|, memcpy = |P|,
-- exposed memcpy = |P without C and M|, busy = |C and M and P together|,
-- window = last end - first start, idle = window - busy, so that
-- computation + exposed communication + exposed memcpy + idle = window (but not of medians).
-- Events without a sound time (see the macro is_timed) are left out. Events that overrun their stream (see `defect` in
-- gpu_events) count as recorded, unless clip_overruns puts a second row with their clipped durations beside it.
--
-- What is communication comes with the kernel's rule (`class` in gpu_events). MegaMoE kernels communicate and compute in
-- one launch, which no trace can take apart: they are computation unless `fused` says otherwise.
--
-- Steps are those of the view `steps`, which says how they were found. With step_rule=execution a device's time is cut
-- at their starts, and events are clipped at the cuts: so the steps add up to the device, and what lies before the first
-- one is step NULL. With step_rule=launch an event belongs whole to the step that launched it, and a step's window goes
-- from its first start to its last end: windows may overlap, and events without a recorded launch are step NULL.
--
-- Parameters:
--   by (text: device|rank|run|step) = device: one row per device; per trace, its devices added; per run the least, middle
--       (the lower one of two) and greatest of its traces; or one row per step of a device
--   step_rule (text: execution|launch) = execution: with by=step, by when work ran or by what launched it
--   step_kernel (text) = : with by=step, steps begin with the kernels that match this regular expression
--   comm_rule (text: rules|tracelens) = rules: what is communication: by the rules, or by TraceLens' names alone
--   linked_only (boolean) = false: only what TraceLens links to a launch (see the derived table tracelens_links), as its
--       gpu_timeline does unless told otherwise
--   fused (text: computation|waits|communication) = computation: MegaMoE kernels as computation; its prologue and epoch
--       waits as communication; or its dispatch and combine kernels too
--   micro_idle_us (number: 0..) = 0: idle gaps shorter than this many microseconds are micro idle
--   clip_overruns (boolean) = false: show the figures with overruns clipped next to the recorded ones
-- Uses: steps, steps_by, gpu_launches when by=step; tracelens_links when linked_only=true
-- Missing:
--   communication_ns: where it is empty, not recorded, rather than 0: rocm_trace_lite cannot see collectives in its
--     lite mode, and the trace holds none
-- Example: traceanalyzer query STORE timeline -p by=run -p micro_idle_us=5
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known, and by run
--   part (number): which trace of this run, collector and rank, from 0; NULL by run
--   device (number): index of the GPU as the collector numbers it, NULL by rank and run
--   step (number): step, NULL before the first one, where the launch is not known, and unless by=step
--   statistic (text): 'value' of a device, 'sum' over the devices of a rank, 'min', 'median' or 'max' over a run
--   durations (text): 'recorded', or 'clipped' where overruns end at the next start of their stream
--   window_ns (ns): first start to last end of GPU work
--   computation_ns (ns): computation
--   communication_ns (ns): communication, hidden or not; NULL where it was not recorded
--   exposed_communication_ns (ns): communication while nothing is computed; NULL where it was not recorded
--   memcpy_ns (ns): copies, hidden or not
--   exposed_memcpy_ns (ns): copies while nothing is computed or communicated
--   busy_ns (ns): any GPU work
--   idle_ns (ns): no GPU work
--   micro_idle_ns (ns): the part of it in gaps shorter than micro_idle_us
WITH variants AS (
    SELECT false AS is_clipped
    UNION ALL
    SELECT true AS is_clipped WHERE $clip_overruns
),
numbered AS (
    -- a small number per trace, which is cheaper to sort by than its name
    SELECT
        run, collector, rank, part, trace_id, row_number() OVER (ORDER BY run, trace_id) AS trace_number,
        collector <> 'rocm_trace_lite' OR (run, trace_id) IN (
            SELECT (run, trace_id) FROM kernel_names WHERE class = 'communication'
        ) AS has_communication
    FROM traces
),
classed AS (
    SELECT
        run, trace_id, event_id, trace_number, device, start_ns, end_ns, clipped_dur_ns,
        CASE
            WHEN category = 'mega_moe' AND subcategory IN ('prologue', 'epoch')
                AND $fused IN ('waits', 'communication') THEN 'communication'
            WHEN category = 'mega_moe' AND subcategory IN ('dispatch_gemm', 'gemm_combine', 'whole_layer')
                AND $fused = 'communication' THEN 'communication'
            WHEN $comm_rule = 'tracelens' THEN tracelens_class
            ELSE class
        END AS counted_class
    FROM gpu_events
    JOIN numbered USING (run, trace_id)
    WHERE is_timed(defect)
        AND (NOT $linked_only OR event_id IN (
            SELECT l.event_id
            FROM derived.tracelens_links AS l
            WHERE l.run = gpu_events.run AND l.trace_id = gpu_events.trace_id
        ))
),
devices AS (
    SELECT
        trace_number, device, is_clipped, min(start_ns) AS start_ns,
        max(CASE WHEN is_clipped THEN start_ns + clipped_dur_ns ELSE end_ns END) AS end_ns
    FROM classed, variants
    WHERE $by = 'step'
    GROUP BY trace_number, device, is_clipped
),
device_steps AS (
    -- the steps of each device, in turn; those of host ranges are of all devices
    SELECT
        trace_number, d.device, is_clipped, step, launch_start_ns,
        CASE WHEN source IN ('ProfilerStep', 'annotation') THEN s.end_ns END AS launch_end_ns,
        -- within the device's window, whose ends are no work of a step
        LEAST(GREATEST(s.start_ns, d.start_ns), d.end_ns) AS cut_ns,
        row_number() OVER (PARTITION BY trace_number, d.device, is_clipped ORDER BY s.start_ns, step) AS ordinal
    FROM steps_by($step_kernel) AS s
    JOIN numbered USING (run, trace_id)
    JOIN devices AS d USING (trace_number)
    WHERE s.device IS NULL OR s.device = d.device
),
placed AS (
    -- where it counts, the ordinal of the step that launched the event
    SELECT trace_number, device, start_ns, end_ns, clipped_dur_ns, counted_class, NULL AS launched
    FROM classed
    WHERE $by <> 'step' OR $step_rule = 'execution'
    UNION ALL
    SELECT
        e.trace_number, e.device, e.start_ns, e.end_ns, clipped_dur_ns, counted_class,
        CASE WHEN launch_end_ns IS NULL OR launch_ns < launch_end_ns THEN ordinal END AS launched
    FROM (FROM classed LEFT JOIN derived.gpu_launches USING (run, trace_id, event_id)) AS e
    ASOF LEFT JOIN (
        FROM device_steps
        WHERE launch_start_ns IS NOT NULL AND NOT is_clipped
        QUALIFY row_number() OVER (PARTITION BY trace_number, device, launch_start_ns ORDER BY ordinal DESC) = 1
    ) AS s
        ON s.trace_number = e.trace_number AND s.device = e.device AND s.launch_start_ns <= e.launch_ns
    WHERE $by = 'step' AND $step_rule = 'launch'
),
events AS (
    SELECT
        trace_number, device, launched, is_clipped, start_ns,
        CASE WHEN is_clipped THEN start_ns + clipped_dur_ns ELSE end_ns END AS end_ns,
        (counted_class = 'computation')::TINYINT AS computes,
        (counted_class = 'communication')::TINYINT AS communicates,
        (counted_class = 'memcpy')::TINYINT AS copies
    FROM placed, variants
),
edges AS (
    -- where an interval starts, one more is running; where it ends, one less
    SELECT
        trace_number, device, launched, is_clipped, start_ns AS t_ns, computes, communicates, copies, 0 AS cuts
    FROM events
    UNION ALL
    SELECT
        trace_number, device, launched, is_clipped, end_ns AS t_ns, -computes, -communicates, -copies, 0 AS cuts
    FROM events
    UNION ALL
    SELECT trace_number, device, NULL AS launched, is_clipped, cut_ns AS t_ns, 0, 0, 0, 1 AS cuts
    FROM device_steps
    WHERE $step_rule = 'execution'
),
stretches AS (
    -- From one edge to the next nothing changes. The order of edges at one moment does not matter: the stretches
    -- between them have no length.
    SELECT
        trace_number, device, is_clipped,
        COALESCE(launched, sum(cuts) OVER running) AS ordinal,
        COALESCE(lead(t_ns) OVER device_time - t_ns, 0) AS span_ns,
        sum(computes) OVER running > 0 AS is_computing,
        sum(communicates) OVER running > 0 AS is_communicating,
        sum(copies) OVER running > 0 AS is_copying
    FROM edges
    WINDOW
        device_time AS (PARTITION BY trace_number, device, is_clipped, launched ORDER BY t_ns),
        running AS (PARTITION BY trace_number, device, is_clipped, launched ORDER BY t_ns ROWS UNBOUNDED PRECEDING)
),
sums AS (
    SELECT
        trace_number, device, is_clipped, ordinal,
        sum(span_ns)::BIGINT AS window_ns,
        COALESCE(sum(span_ns) FILTER (is_computing), 0)::BIGINT AS computation_ns,
        COALESCE(sum(span_ns) FILTER (is_communicating), 0)::BIGINT AS communication_ns,
        COALESCE(sum(span_ns) FILTER (is_communicating AND NOT is_computing), 0)::BIGINT AS exposed_communication_ns,
        COALESCE(sum(span_ns) FILTER (is_copying), 0)::BIGINT AS memcpy_ns,
        COALESCE(sum(span_ns) FILTER (is_copying AND NOT is_computing AND NOT is_communicating), 0)::BIGINT
            AS exposed_memcpy_ns,
        COALESCE(sum(span_ns) FILTER (is_computing OR is_communicating OR is_copying), 0)::BIGINT AS busy_ns,
        COALESCE(sum(span_ns) FILTER (NOT (is_computing OR is_communicating OR is_copying)), 0)::BIGINT AS idle_ns,
        COALESCE(sum(span_ns) FILTER (
            NOT (is_computing OR is_communicating OR is_copying) AND span_ns < $micro_idle_us * 1000), 0)::BIGINT
            AS micro_idle_ns
    FROM stretches
    GROUP BY trace_number, device, is_clipped, ordinal
),
measured AS (
    FROM sums
    -- what lies before the first step is nothing when a step begins with the first event
    WHERE $by <> 'step' OR $step_rule = 'launch' OR ordinal > 0 OR window_ns > 0
    UNION ALL BY NAME
    -- steps without any work
    SELECT
        trace_number, device, is_clipped, ordinal, 0 AS window_ns, 0 AS computation_ns, 0 AS communication_ns,
        0 AS exposed_communication_ns, 0 AS memcpy_ns, 0 AS exposed_memcpy_ns, 0 AS busy_ns, 0 AS idle_ns,
        0 AS micro_idle_ns
    FROM device_steps
    ANTI JOIN sums USING (trace_number, device, is_clipped, ordinal)
    -- where no launch was recorded, nobody knows what a step launched
    WHERE $step_rule = 'execution' OR trace_number IN (SELECT trace_number FROM sums WHERE ordinal > 0)
),
by_device AS (
    SELECT
        run, collector, rank, part, m.device, step, ordinal, is_clipped, 'value' AS statistic,
        window_ns, computation_ns,
        CASE WHEN has_communication THEN communication_ns END AS communication_ns,
        CASE WHEN has_communication THEN exposed_communication_ns END AS exposed_communication_ns,
        memcpy_ns, exposed_memcpy_ns, busy_ns, idle_ns, micro_idle_ns
    FROM measured AS m
    JOIN numbered USING (trace_number)
    LEFT JOIN device_steps USING (trace_number, device, is_clipped, ordinal)
),
by_rank AS (
    SELECT run, collector, rank, part, is_clipped, 'sum' AS statistic, sum(COLUMNS('(.*_ns)'))::BIGINT AS '\1'
    FROM by_device
    GROUP BY run, collector, rank, part, is_clipped
),
by_run AS (
    SELECT
        run, collector, is_clipped, unnest(['min', 'median', 'max']) AS statistic,
        unnest(quantile_disc(COLUMNS('(.*_ns)'), [0, 0.5, 1])) AS '\1'
    FROM by_rank
    GROUP BY run, collector, is_clipped
),
answer AS (
    FROM by_device WHERE $by IN ('device', 'step')
    UNION ALL BY NAME
    FROM by_rank WHERE $by = 'rank'
    UNION ALL BY NAME
    FROM by_run WHERE $by = 'run'
)
SELECT
    run, collector, rank, part, device, step, statistic,
    CASE WHEN is_clipped THEN 'clipped' ELSE 'recorded' END AS durations,
    window_ns, computation_ns, communication_ns, exposed_communication_ns, memcpy_ns, exposed_memcpy_ns,
    busy_ns, idle_ns, micro_idle_ns
FROM answer
ORDER BY
    run, collector, rank, part, device, ordinal, is_clipped, list_position(['min', 'median', 'max'], statistic)
