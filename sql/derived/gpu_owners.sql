-- gpu_owners: what launched each piece of GPU work: the operator, and what is around it.
--
-- One row is one piece of GPU work of which any of it is known. Joined only where one of its columns is asked for.
-- The operator is the innermost one around the runtime call that launched the work; where no call was recorded, the one
-- with the work's External id.
-- Work of a checkpoint that is computed again shows in one of three ways: by the Python frame `recompute_fn` ('frame');
-- by the innermost autograd node being a checkpoint's, since its true backward has spans of its own ('checkpoint node');
-- or by an operator of the forward pass, with a sequence number of its own and no forward thread, within a span of the
-- autograd engine ('forward in backward').
--
-- Columns:
--   run (text): name of the training run
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   op_event_id (number): event_id of the operator that launched the work
--   node_event_id (number): event_id of the innermost span `autograd::engine::evaluate_function: ...` around the launch
--   is_in_node (boolean): the launch lies within the node itself, not only within the engine's span around it
--   annotation_event_id (number): event_id of the innermost annotation around the launch
--   frame_event_id (number): event_id of the innermost Python frame around the launch
--   module_event_id (number): event_id of the innermost nn.Module call around the launch
--   op_path (numbers): event_ids of the operators around the launch, outermost first; without a recorded call, op_event_id
--   recompute_signal (text): how it shows that a checkpoint computes this again, NULL when it does not
WITH places AS (
    SELECT
        l.event_id, op_event_id, node_event_id, annotation_event_id, frame_event_id, module_event_id,
        recompute_event_id, l.runtime_event_id AS place_event_id, op_path
    FROM derived.gpu_launches AS l
    JOIN derived.host_tree AS t ON t.event_id = l.runtime_event_id
    UNION ALL
    SELECT
        e.event_id, i.op_event_id, node_event_id, annotation_event_id, frame_event_id, module_event_id,
        recompute_event_id, NULL AS place_event_id, [i.op_event_id] AS op_path
    FROM raw.gpu_events AS e
    JOIN (
        SELECT external_id, min(event_id) AS op_event_id
        FROM raw.cpu_ops
        WHERE external_id > 0
        GROUP BY external_id
    ) AS i USING (external_id)
    LEFT JOIN derived.host_tree AS t ON t.event_id = i.op_event_id
    WHERE e.event_id NOT IN (SELECT event_id FROM derived.gpu_launches)
),
steps_down AS (
    -- the operators around each call, each one a place further inside
    SELECT
        place_event_id, node_event_id, unnest(op_path) AS op_event_id, generate_subscripts(op_path, 1) AS place,
        list_position(op_path, node_event_id) AS node_place
    FROM (
        SELECT DISTINCT place_event_id, node_event_id, op_path
        FROM places
        WHERE node_event_id IS NOT NULL
            AND place_event_id IS NOT NULL
    )
),
within_node AS (
    SELECT
        place_event_id,
        bool_or(o.name = node.name[38:]) AS is_in_node,
        bool_or(o.sequence_number >= 0 AND COALESCE(o.forward_tid, 0) = 0 AND o.name <> node.name[38:])
            AS is_forward
    FROM steps_down AS s
    JOIN raw.cpu_ops AS o ON o.event_id = s.op_event_id
    JOIN raw.cpu_ops AS node ON node.event_id = s.node_event_id
    WHERE place > node_place
    GROUP BY place_event_id
)
SELECT
    trace.run, trace.trace_id, p.event_id, op_event_id, node_event_id, COALESCE(is_in_node, false) AS is_in_node,
    annotation_event_id, frame_event_id, module_event_id, op_path,
    CASE
        WHEN recompute_event_id IS NOT NULL THEN 'frame'
        WHEN regexp_matches(node.name, ': Checkpoint\w*FunctionBackward$') THEN 'checkpoint node'
        WHEN is_forward THEN 'forward in backward'
    END AS recompute_signal
FROM places AS p
LEFT JOIN within_node USING (place_event_id)
LEFT JOIN raw.cpu_ops AS node ON node.event_id = p.node_event_id
CROSS JOIN raw.traces AS trace
ORDER BY p.event_id
