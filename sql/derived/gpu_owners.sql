-- gpu_owners: what launched each piece of GPU work: the operator, and what is around it.
--
-- One row is one piece of GPU work of which any of it is known. Joined only where one of its columns is asked for.
-- The operator is the innermost one around the runtime call that launched the work; where no call was recorded, the one
-- with the work's External id.
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   op_event_id (number): event_id of the operator that launched the work
--   node_event_id (number): event_id of the span `autograd::engine::evaluate_function: ...` around the launch
--   annotation_event_id (number): event_id of the innermost annotation around the launch
--   frame_event_id (number): event_id of the innermost Python frame around the launch
--   module_event_id (number): event_id of the innermost nn.Module call around the launch
--   op_path (JSON): event_ids of the operators around the launch, outermost first
WITH of_calls AS (
    SELECT l.event_id, op_event_id, node_event_id, annotation_event_id, frame_event_id, module_event_id, op_path
    FROM derived.gpu_launches AS l
    JOIN derived.host_tree AS t ON t.event_id = l.runtime_event_id
),
ids AS (
    SELECT external_id, min(event_id) AS op_event_id
    FROM raw.cpu_ops
    WHERE external_id > 0
    GROUP BY external_id
),
of_ids AS (
    SELECT e.event_id, i.op_event_id, t.node_event_id, t.annotation_event_id, t.frame_event_id, t.module_event_id
    FROM raw.gpu_events AS e
    JOIN ids AS i USING (external_id)
    LEFT JOIN derived.host_tree AS t ON t.event_id = i.op_event_id
    WHERE e.event_id NOT IN (SELECT event_id FROM derived.gpu_launches)
)
SELECT
    run, trace_id, event_id, op_event_id, node_event_id, annotation_event_id, frame_event_id, module_event_id, op_path
FROM (
    FROM of_calls
    UNION ALL
    SELECT
        event_id, op_event_id, node_event_id, annotation_event_id, frame_event_id, module_event_id,
        [op_event_id] AS op_path
    FROM of_ids
)
CROSS JOIN (SELECT run, trace_id FROM raw.traces)
ORDER BY event_id
