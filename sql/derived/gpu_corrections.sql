-- gpu_corrections: what of GPU work must be read otherwise than it was recorded.
--
-- One row is one event of which the grid, the block or the time is not what it seems; most traces have few or none.
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   is_swapped (boolean): block and grid stand in each other's place
--   in_work_items (boolean): the grid counts work-items, not blocks
--   defect (text): 'impossible_timestamp' (more than a day away from the trace's other GPU work) or 'overrun' (reaches at
--       least 100 ms into later work of its stream and covers at least two events of it whole), else NULL
--   next_start_ns (ns): of an overrun, the next start on its stream
WITH work_item_launches AS (
    SELECT DISTINCT correlation_id
    FROM raw.runtime_calls
    -- only PyTorch's profiler takes the work-items of this call for blocks
    WHERE collector = 'pytorch'
        AND name = 'hipExtModuleLaunchKernel'
        AND correlation_id > 0
),
trace AS (
    SELECT
        COALESCE(bool_or(collector = 'pytorch' AND block_x * block_y * block_z > 1024), false) AS is_swapped,
        -- the upper median, so that of two times far apart the later counts: clocks fail by giving 0
        -quantile_disc(-start_ns, 0.5) AS middle_ns
    FROM raw.gpu_events
),
overruns AS (
    -- only the few events that are long enough can be one, so the join is small
    SELECT long.event_id, min(later.start_ns) AS next_start_ns
    FROM raw.gpu_events AS long
    JOIN raw.gpu_events AS later
        ON later.device = long.device
        AND later.stream = long.stream
        AND later.start_ns > long.start_ns
        AND later.start_ns < long.start_ns + long.dur_ns
    WHERE long.dur_ns >= 100000000
        AND later.dur_ns >= 0
    GROUP BY long.event_id, long.start_ns, long.dur_ns
    HAVING count(*) FILTER (later.start_ns + later.dur_ns <= long.start_ns + long.dur_ns) >= 2
        AND long.start_ns + long.dur_ns - min(later.start_ns) >= 100000000
),
judged AS (
    SELECT
        run, trace_id, event_id, is_swapped,
        is_swapped OR work_item_launches.correlation_id IS NOT NULL AS in_work_items,
        CASE
            WHEN defect IS NOT NULL THEN NULL
            WHEN abs(start_ns - middle_ns) > 86400000000000 THEN 'impossible_timestamp'
            WHEN next_start_ns IS NOT NULL THEN 'overrun'
        END AS defect,
        next_start_ns
    FROM raw.gpu_events
    CROSS JOIN trace
    LEFT JOIN work_item_launches USING (correlation_id)
    LEFT JOIN overruns USING (event_id)
)
SELECT run, trace_id, event_id, is_swapped, in_work_items, defect, next_start_ns
FROM judged
WHERE in_work_items
    OR defect IS NOT NULL
ORDER BY event_id
