-- host_tree: which host range lies within which, and what is around it.
--
-- One row is one operator, runtime call, annotation or nn.Module call of the host; plain Python frames can be parents, but
-- have no rows. The parent is the innermost range of the thread that was open when this one began; of two that begin
-- together the longer one is around the other. A range that begins less than a microsecond before another ends, and ends
-- behind it, is its neighbour, since profilers round times; any other range that ends behind its parent is crossing.
-- Nesting takes a stack: traceanalyzer/engine/nesting.py. Joined only where one of its columns is asked for.
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   parent_event_id (number): event_id of the range around it, NULL when there is none
--   depth (number): how many ranges are around it
--   op_event_id (number): event_id of the innermost operator, itself included
--   node_event_id (number): event_id of the innermost span `autograd::engine::evaluate_function: ...`
--   annotation_event_id (number): event_id of the innermost annotation
--   frame_event_id (number): event_id of the innermost Python frame
--   module_event_id (number): event_id of the innermost nn.Module call
--   recompute_event_id (number): event_id of the Python frame of a checkpoint that computes its part again
--   is_crossing (boolean): it ends behind the range in which it began
--   op_path (numbers): of a runtime call, the event_ids of the operators around it, outermost first
WITH ranges AS (
    SELECT
        event_id, pid, tid, start_ns, start_ns + dur_ns AS end_ns,
        CASE WHEN starts_with(name, 'autograd::engine::evaluate_function: ') THEN 1 ELSE 0 END AS role
    FROM raw.cpu_ops
    WHERE dur_ns >= 0
    UNION ALL
    SELECT event_id, pid, tid, start_ns, start_ns + dur_ns AS end_ns, 2 AS role
    FROM raw.runtime_calls
    WHERE dur_ns >= 0
    UNION ALL
    SELECT event_id, pid, tid, start_ns, start_ns + dur_ns AS end_ns, 3 AS role
    FROM raw.annotations
    WHERE dur_ns >= 0
        AND side = 'cpu'
    UNION ALL
    SELECT
        event_id, pid, tid, start_ns, start_ns + dur_ns AS end_ns,
        CASE
            WHEN starts_with(name, 'nn.Module: ') THEN 5
            WHEN contains(name, 'torch/utils/checkpoint.py') AND contains(name, 'recompute_fn') THEN 6
            ELSE 4
        END AS role
    FROM raw.python_calls
    WHERE dur_ns >= 0
)
SELECT dense_rank() OVER (ORDER BY pid, tid) AS thread, event_id, role, start_ns, end_ns
FROM ranges
ORDER BY thread, start_ns, end_ns DESC, event_id;

SELECT
    run, trace_id, event_id, parent_event_id, depth, op_event_id, node_event_id, annotation_event_id, frame_event_id,
    module_event_id, recompute_event_id, is_crossing, op_path
FROM nesting
CROSS JOIN (SELECT run, trace_id FROM raw.traces)
