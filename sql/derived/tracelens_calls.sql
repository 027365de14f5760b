-- tracelens_calls: the operators around each runtime call, as TraceLens nests them.
--
-- One row is one runtime call of TraceLens' host tree. It holds operators and calls only, sorted by start and by place in
-- the file, and drops a range that ends behind its parent, unless another is open around that and it ends within a
-- microsecond. Operators called 'execute' are looked through. Joined only where one of its columns is asked for.
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the call in the trace file, from 0
--   tracelens_path (numbers): event_ids of the operators around it, outermost first
WITH ranges AS (
    SELECT event_id, pid, tid, start_ns, start_ns + dur_ns AS end_ns, CASE name WHEN 'execute' THEN 4 ELSE 0 END AS role
    FROM raw.cpu_ops
    WHERE dur_ns IS NOT NULL
    UNION ALL
    SELECT event_id, pid, tid, start_ns, start_ns + dur_ns AS end_ns, 2 AS role
    FROM raw.runtime_calls
    WHERE dur_ns IS NOT NULL
        AND api IN ('cuda_runtime', 'cuda_driver')
)
SELECT dense_rank() OVER (ORDER BY pid, tid) AS thread, event_id, role, start_ns, end_ns
FROM ranges
ORDER BY thread, start_ns, event_id;

SELECT run, trace_id, event_id, op_path AS tracelens_path
FROM tracelens_nesting
CROSS JOIN (SELECT run, trace_id FROM raw.traces)
WHERE op_path IS NOT NULL
