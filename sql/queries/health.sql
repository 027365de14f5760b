-- health: what is missing, doubtful or corrupt in each trace.
--
-- One row is one thing found in one trace (or, of the checks that compare ranks, in one run).
-- Severity 'error' means that the numbers cannot be trusted, 'warning' that some of them deserve a second look, 'info'
-- says what was recorded and what was not. `traceanalyzer doctor` sums it up. Works without GPU events.
--
-- Example: traceanalyzer query STORE health
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known or when the run is meant
--   part (number): which trace of this run, collector and rank, from 0; NULL when the run is meant
--   check (text): what was looked at
--   severity (text): 'error', 'warning' or 'info'
--   count (count): how many were found
--   detail (text): what that means
WITH launches AS (
    SELECT
        run, collector, rank, part, trace_id, correlation_id,
        min(start_ns) AS start_ns,
        bool_or(name IN ('hipGraphLaunch', 'cudaGraphLaunch')) AS is_graph
    FROM runtime_calls
    WHERE correlation_id > 0
    GROUP BY run, collector, rank, part, trace_id, correlation_id
),
linked AS (
    SELECT
        e.run, e.collector, e.rank, e.part, e.dur_ns, e.defect,
        l.correlation_id IS NOT NULL AS has_launch,
        l.is_graph,
        e.start_ns < l.start_ns AS starts_before_launch,
        count(*) OVER (PARTITION BY e.run, e.trace_id, e.correlation_id) AS with_same_correlation
    FROM gpu_events AS e
    LEFT JOIN launches AS l USING (run, trace_id, correlation_id)
),
ordered AS (
    SELECT
        run, collector, rank, part, end_ns,
        lead(start_ns) OVER (PARTITION BY run, trace_id, device, stream ORDER BY start_ns, event_id) AS next_start_ns
    FROM gpu_events
    WHERE is_timed(defect)
        AND (defect IS NULL OR defect <> 'overrun')
),
ranks AS (
    SELECT
        run, collector, max(world_size) AS world_size, count(DISTINCT rank) AS ranks,
        string_agg(DISTINCT CAST(rank AS VARCHAR), ', ' ORDER BY CAST(rank AS VARCHAR)) AS seen
    FROM traces
    WHERE rank IS NOT NULL
    GROUP BY run, collector
),
streams AS (
    SELECT run, collector, rank, count(DISTINCT (device, stream)) AS streams
    FROM gpu_events
    GROUP BY run, collector, rank
),
found AS (
    SELECT run, collector, rank, part, 'incomplete' AS check_name, 'error' AS severity, 1 AS n, warnings[1] AS detail
    FROM traces
    WHERE NOT complete
    UNION ALL
    SELECT
        run, collector, rank, part, 'rejects',
        CASE WHEN events_rejected * 100 > events_read THEN 'error' ELSE 'warning' END,
        events_rejected,
        'events that could not be stored; the view rejects has them'
    FROM traces
    WHERE events_rejected > 0
    UNION ALL
    SELECT run, collector, rank, part, 'repairs', 'warning', repairs, 'damaged places in the file that were repaired'
    FROM traces
    WHERE repairs > 0
    UNION ALL
    SELECT
        t.run, t.collector, t.rank, t.part, 'no GPU events', 'error', 1,
        CASE
            WHEN t.collector = 'rocm_trace_lite' AND EXISTS (
                SELECT 1 FROM annotations AS a WHERE a.trace_id = t.trace_id AND a.run = t.run
            ) THEN 'the trace holds roctx markers only: with ROCm 10 record with HSA_TOOLS_DISABLE_REGISTER=1'
            ELSE 'the trace holds host events only'
        END
    FROM traces AS t
    WHERE NOT EXISTS (
        SELECT 1 FROM gpu_events AS e WHERE e.trace_id = t.trace_id AND e.run = t.run
    )
    UNION ALL
    SELECT
        run, collector, rank, part, 'defect ' || defect,
        CASE WHEN defect = 'overrun' THEN 'error' ELSE 'warning' END,
        count(*),
        CASE
            WHEN defect = 'overrun' THEN 'GPU events of seconds that cover later ones; see timeline -p clip_overruns=true'
            ELSE 'GPU events that are left out of all sums and windows'
        END
    FROM gpu_events
    WHERE defect IS NOT NULL
    GROUP BY run, collector, rank, part, defect
    UNION ALL
    SELECT
        run, collector, rank, part, 'overlap on a stream', 'info', count(*),
        'GPU events that start before the one before them on their stream ends, by '
        || sum(end_ns - next_start_ns) || ' ns in all'
    FROM ordered
    WHERE next_start_ns < end_ns
    GROUP BY run, collector, rank, part
    UNION ALL
    SELECT
        run, collector, rank, part, 'shared correlation', 'info', count(*),
        'GPU events that share their correlation id though no graph launched them'
    FROM linked
    WHERE with_same_correlation > 1
        AND has_launch
        AND NOT is_graph
    GROUP BY run, collector, rank, part
    UNION ALL
    SELECT
        run, collector, rank, part, 'unlinked',
        CASE WHEN sum(dur_ns) FILTER (NOT has_launch) * 2 > sum(dur_ns) THEN 'warning' ELSE 'info' END,
        count(*) FILTER (NOT has_launch),
        'GPU events without a recorded launch, '
        || round(100.0 * sum(dur_ns) FILTER (NOT has_launch) / NULLIF(sum(dur_ns), 0), 1) || ' % of the GPU time'
    FROM linked
    WHERE is_timed(defect)
    GROUP BY run, collector, rank, part
    HAVING count(*) FILTER (NOT has_launch) > 0
    UNION ALL
    SELECT
        run, collector, rank, part, 'starts before its launch', 'warning', count(*),
        'GPU events that start before the call that launched them: the clocks of host and device differ'
    FROM linked
    WHERE starts_before_launch
    GROUP BY run, collector, rank, part
    UNION ALL
    SELECT
        l.run, l.collector, l.rank, l.part, 'graph launches without kernels', 'error', count(*),
        'graph launches of which no kernel was recorded: idle time is not reliable'
    FROM launches AS l
    WHERE l.is_graph
        AND NOT EXISTS (
            SELECT 1
            FROM gpu_events AS e
            WHERE e.run = l.run AND e.trace_id = l.trace_id AND e.correlation_id = l.correlation_id
        )
    GROUP BY l.run, l.collector, l.rank, l.part
    UNION ALL
    SELECT
        run, collector, rank, part, 'correlations on several devices', 'warning', count(*),
        'correlation ids with GPU events on more than one device: were several ranks merged into one file?'
    FROM (
        SELECT run, collector, rank, part, trace_id, correlation_id
        FROM gpu_events
        WHERE correlation_id > 0
        GROUP BY run, collector, rank, part, trace_id, correlation_id
        HAVING count(DISTINCT device) > 1
    )
    GROUP BY run, collector, rank, part
    UNION ALL
    SELECT
        run, collector, rank, part, 'unfinished operators', 'info', count(*),
        'operators that had not ended when the profiler stopped; their durations are not real'
    FROM cpu_ops
    WHERE contains(args, '"finished":false')
    GROUP BY run, collector, rank, part
    UNION ALL
    SELECT
        run, collector, rank, part, 'no steps', 'info', 1,
        'no annotation and no kernel that marks steps: the trace can only be looked at as a whole'
    FROM steps
    WHERE source = 'whole trace'
    GROUP BY run, collector, rank, part
    UNION ALL
    SELECT
        run, collector, rank, part, 'steps by a marker kernel', 'info', count(*),
        'steps begin where a kernel comes that is there once or in one burst per step, such as '
        || left(any_value(marker), 100) || '; timeline -p step_kernel=REGEX takes another'
    FROM steps
    WHERE source = 'marker kernel'
    GROUP BY run, collector, rank, part
    UNION ALL
    SELECT
        s.run, s.collector, s.rank, s.part, 'steps without GPU work', 'warning', count(*),
        'of ' || any_value(n) || ' steps: nothing ran on a GPU before the next one began'
    FROM steps AS s
    JOIN (SELECT run, trace_id, count(*) AS n FROM steps GROUP BY run, trace_id) AS c USING (run, trace_id)
    WHERE NOT EXISTS (
        SELECT 1
        FROM gpu_events AS e
        WHERE e.run = s.run AND e.trace_id = s.trace_id AND e.execution_step = s.step
    )
        AND s.source <> 'whole trace'
    GROUP BY s.run, s.collector, s.rank, s.part
    UNION ALL
    SELECT
        t.run, t.collector, t.rank, t.part,
        CASE WHEN c.trace_id IS NULL THEN 'communication not recorded' ELSE 'copies and graphs not recorded' END,
        CASE WHEN c.trace_id IS NULL THEN 'warning' ELSE 'info' END,
        1,
        CASE
            WHEN c.trace_id IS NULL THEN
                'no collective in the trace, as in the lite mode of rocm_trace_lite, which sees neither collectives nor'
                || ' other kernels with a completion signal of their own, nor what graphs replay: idle time holds them'
            ELSE 'rocm_trace_lite sees no copies by the DMA engines, and what graphs replay in its mode full only'
        END
    FROM traces AS t
    LEFT JOIN (SELECT DISTINCT run, trace_id FROM kernel_names WHERE class = 'communication') AS c USING (run, trace_id)
    WHERE t.collector = 'rocm_trace_lite'
    UNION ALL
    SELECT
        run, collector, rank, part, 'profiler', 'info', 1,
        'recorded with ' || COALESCE(profiler, 'nothing that the trace names')
    FROM traces
    UNION ALL
    SELECT
        run, collector, NULL, NULL, 'missing ranks', 'warning', world_size - ranks,
        'the job had ' || world_size || ' ranks, the store has ' || seen
    FROM ranks
    WHERE world_size > ranks
    UNION ALL
    SELECT
        run, collector, NULL, NULL, 'ranks differ in their streams', 'warning', count(*),
        'ranks have between ' || min(streams) || ' and ' || max(streams) || ' streams: some may lack records'
    FROM streams
    GROUP BY run, collector
    HAVING min(streams) <> max(streams)
)
SELECT run, collector, rank, part, check_name AS check, severity, n::BIGINT AS count, detail
FROM found
ORDER BY
    run, collector, rank, part,
    CASE severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END,
    check_name
