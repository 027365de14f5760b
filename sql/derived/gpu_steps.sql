-- gpu_steps: in which steps each piece of GPU work was launched and executed.
--
-- One row is one piece of GPU work. Joined only where one of its columns is asked for.
-- Steps begin at the starts of `steps`: executed in the last one begun when the work started, launched in the last one
-- begun on the host when the call started, unless that one had ended.
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   launch_step (number): step that launched the work; NULL before the first one and when the call was not recorded
--   execution_step (number): step in which the work started; NULL before the first one
WITH devices AS (
    SELECT DISTINCT device
    FROM raw.gpu_events
),
begun AS (
    -- the steps of each device
    SELECT
        d.device, step, start_ns, launch_start_ns,
        CASE WHEN source IN ('ProfilerStep', 'annotation') THEN end_ns END AS launch_end_ns
    FROM derived.steps AS s
    JOIN devices AS d ON s.device IS NULL OR s.device = d.device
    -- of steps that begin together the last one
    QUALIFY row_number() OVER (PARTITION BY d.device, start_ns ORDER BY step DESC) = 1
),
executed AS (
    SELECT w.run, w.trace_id, w.event_id, w.device, l.launch_ns, b.step AS execution_step
    FROM raw.gpu_events AS w
    LEFT JOIN derived.gpu_launches AS l USING (run, trace_id, event_id)
    ASOF LEFT JOIN begun AS b ON b.device = w.device AND b.start_ns <= w.start_ns
)
SELECT
    run, trace_id, event_id,
    CASE WHEN b.launch_end_ns IS NULL OR e.launch_ns < b.launch_end_ns THEN b.step END AS launch_step,
    execution_step
FROM executed AS e
ASOF LEFT JOIN (FROM begun WHERE launch_start_ns IS NOT NULL) AS b
    ON b.device = e.device AND b.launch_start_ns <= e.launch_ns
ORDER BY event_id
