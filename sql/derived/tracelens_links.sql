-- tracelens_links: which GPU work TraceLens links to a runtime call, and to which.
--
-- One row is one piece of GPU work that TraceLens keeps by default; the rest it drops. Its rule, in its own terms: the
-- linking key is `correlation`, unless the first runtime call with "launch" in its name has none, then `External id`. A
-- call of a graph's launch owns all GPU events of its key. Any other call needs the start and the end of an ac2g flow with
-- its key, and owns the one GPU event that was last in the file on the track and with the id of the flow's end.
-- Joined only where one of its columns is asked for.
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   tracelens_runtime_event_id (number): event_id of the call
WITH calls AS (
    SELECT event_id, name, correlation_id, external_id
    FROM raw.runtime_calls
    WHERE api IN ('cuda_runtime', 'cuda_driver')
),
linking AS (
    SELECT COALESCE(arg_min(correlation_id IS NOT NULL, event_id), false) AS by_correlation
    FROM calls
    WHERE contains(lower(name), 'launch')
),
keyed_calls AS (
    SELECT event_id, name, CASE WHEN by_correlation THEN correlation_id ELSE external_id END AS key
    FROM calls
    CROSS JOIN linking
),
keyed_work AS (
    SELECT event_id, pid, tid, CASE WHEN by_correlation THEN correlation_id ELSE external_id END AS key
    FROM raw.gpu_events
    CROSS JOIN linking
),
last_work AS (
    SELECT pid, tid, key, max(event_id) AS event_id
    FROM keyed_work
    WHERE key IS NOT NULL
    GROUP BY pid, tid, key
),
flows AS (
    SELECT
        TRY_CAST(id AS BIGINT) AS key, bool_or(phase = 's') AS has_start,
        arg_max(pid, event_id) FILTER (phase <> 's') AS pid, arg_max(tid, event_id) FILTER (phase <> 's') AS tid
    FROM raw.flows
    WHERE category = 'ac2g'
    GROUP BY id
),
linked AS (
    SELECT w.event_id, c.event_id AS runtime_event_id
    FROM keyed_calls AS c
    JOIN keyed_work AS w USING (key)
    WHERE c.name IN ('cudaGraphLaunch', 'hipGraphLaunch')
    UNION ALL
    SELECT w.event_id, c.event_id AS runtime_event_id
    FROM keyed_calls AS c
    JOIN flows AS f USING (key)
    JOIN last_work AS w ON w.pid = f.pid AND w.tid = f.tid AND w.key = f.key
    WHERE c.name NOT IN ('cudaGraphLaunch', 'hipGraphLaunch')
        AND f.has_start
)
SELECT run, trace_id, event_id, max(runtime_event_id) AS tracelens_runtime_event_id
FROM linked
CROSS JOIN (SELECT run, trace_id FROM raw.traces)
GROUP BY run, trace_id, event_id
ORDER BY event_id
