-- gpu_launches: which runtime call launched each piece of GPU work.
--
-- One row is one piece of GPU work whose launch was recorded. Joined only where one of its columns is asked for.
-- A call and the work it launched share a correlation id; 0 and -1 are none. A graph's launch has many kernels. Of several
-- calls with one id the first counts.
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   is_linked (boolean): true
--   runtime_event_id (number): event_id of the call
--   launch_ns (ns): start of the call
WITH calls AS (
    SELECT correlation_id, arg_min(event_id, start_ns) AS runtime_event_id, min(start_ns) AS launch_ns
    FROM raw.runtime_calls
    WHERE correlation_id > 0
        AND start_ns IS NOT NULL
    GROUP BY correlation_id
)
SELECT run, trace_id, event_id, true AS is_linked, runtime_event_id, launch_ns
FROM raw.gpu_events
JOIN calls USING (correlation_id)
ORDER BY event_id
