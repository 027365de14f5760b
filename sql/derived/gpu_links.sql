-- gpu_links: which call launched each piece of GPU work, and in which steps it was launched and executed.
--
-- One row is one piece of GPU work of which any of this is known. Joined only where one of its columns is asked for.
-- A call and the work it launched share a correlation id; 0 and -1 are none. Of several calls with one id the first
-- counts. Steps begin at the starts of `steps`: executed in the last one begun when the work started, launched in the
-- last one begun on the host when the call started, unless that one had ended.
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   runtime_event_id (number): event_id of the runtime call that launched the work, NULL when that was not recorded
--   launch_ns (ns): start of that call
--   launch_step (number): step that launched the work; NULL before the first one and when the call was not recorded
--   execution_step (number): step in which the work started; NULL before the first one
WITH calls AS (
    SELECT correlation_id, arg_min(event_id, start_ns) AS runtime_event_id, min(start_ns) AS launch_ns
    FROM raw.runtime_calls
    WHERE correlation_id > 0 AND start_ns IS NOT NULL
    GROUP BY correlation_id
),
work AS (
    SELECT run, trace_id, event_id, device, start_ns, runtime_event_id, launch_ns
    FROM raw.gpu_events
    LEFT JOIN calls USING (correlation_id)
),
devices AS (
    SELECT DISTINCT device FROM raw.gpu_events
),
begun AS (
    -- the steps of each device
    SELECT d.device, step, start_ns, launch_start_ns, CASE WHEN source IN ('ProfilerStep', 'annotation') THEN end_ns END
        AS launch_end_ns
    FROM derived.steps AS s
    JOIN devices AS d ON s.device IS NULL OR s.device = d.device
),
executed AS (
    SELECT w.*, b.step AS execution_step
    FROM work AS w
    ASOF LEFT JOIN begun AS b ON b.device = w.device AND b.start_ns <= w.start_ns
)
SELECT
    run, trace_id, event_id, runtime_event_id, launch_ns,
    CASE WHEN b.launch_end_ns IS NULL OR e.launch_ns < b.launch_end_ns THEN b.step END AS launch_step,
    execution_step
FROM executed AS e
ASOF LEFT JOIN (FROM begun WHERE launch_start_ns IS NOT NULL) AS b
    ON b.device = e.device AND b.launch_start_ns <= e.launch_ns
ORDER BY event_id
