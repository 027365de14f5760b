-- kernel_owners: what launched each piece of GPU work, by name: operator, autograd node, module, annotation.
--
-- One row is one piece of GPU work. What is not known, since the launch, the operators or the Python stack were not
-- recorded, is NULL.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   kind (text): 'kernel', 'memcpy' or 'memset', as recorded
--   name (text): name of the kernel or copy
--   class (text): 'computation', 'communication' or 'memcpy'
--   category (text): what kind of work it is by its name
--   subcategory (text): what exactly
--   device (number): index of the GPU as the collector numbers it
--   stream (number): stream or hardware queue on the device
--   start_ns (ns): start on the trace's own clock
--   dur_ns (ns): duration
--   end_ns (ns): end
--   defect (text): NULL, or what is wrong with its time
--   execution_step (number): step in which it started
--   op (text): operator that launched it
--   op_event_id (number): event_id of that operator
--   input_dims (JSON): shapes of the operator's inputs
--   node (text): autograd node whose span the launch lies in, such as 'torch::autograd::AccumulateGrad'
--   node_event_id (number): event_id of that span
--   is_in_node (boolean): the launch lies within the node itself; else in the engine's span around it, as hooks do
--   module (text): innermost nn.Module around the launch
--   annotation (text): innermost annotation around the launch
--   phase (text): 'optimizer', 'recompute', 'backward' or 'forward'
--   stage (text): what it is in this place, where its name does not tell: rules in sql/rules/context_rules.csv, NULL when
--       none fits
--   stage_confidence (text): 'certain' or 'high': how sure that is
--   context_rule_id (text): the rule that said so
--   recompute_signal (text): how it shows that a checkpoint computes this again: 'frame', 'checkpoint node' or
--       'forward in backward'
WITH owned AS (
    SELECT
        e.run, e.collector, e.rank, e.part, e.trace_id, e.event_id, e.kind, e.name, e.class, e.category, e.subcategory,
        e.device, e.stream, e.start_ns, e.dur_ns, e.end_ns, e.defect, e.execution_step,
        op.name AS op, g.op_event_id, op.input_dims,
        regexp_replace(node.name, '^autograd::engine::evaluate_function: ', '') AS node, g.node_event_id, g.is_in_node,
        regexp_extract(module.name, '^nn.Module: (.*)$', 1) AS module, annotation.name AS annotation,
        CASE
            WHEN e.category = 'optimizer' OR contains(annotation.name, 'Optimizer.step#') THEN 'optimizer'
            WHEN g.recompute_signal IS NOT NULL THEN 'recompute'
            WHEN g.node_event_id IS NOT NULL THEN 'backward'
            WHEN g.op_event_id IS NOT NULL THEN 'forward'
        END AS phase,
        g.recompute_signal
    FROM gpu_events AS e
    LEFT JOIN derived.gpu_owners AS g ON g.run = e.run AND g.trace_id = e.trace_id AND g.event_id = e.event_id
    LEFT JOIN raw.cpu_ops AS op ON op.run = g.run AND op.trace_id = g.trace_id AND op.event_id = g.op_event_id
    LEFT JOIN raw.cpu_ops AS node ON node.run = g.run AND node.trace_id = g.trace_id AND node.event_id = g.node_event_id
    LEFT JOIN raw.python_calls AS module
        ON module.run = g.run AND module.trace_id = g.trace_id AND module.event_id = g.module_event_id
    LEFT JOIN raw.annotations AS annotation
        ON annotation.run = g.run AND annotation.trace_id = g.trace_id AND annotation.event_id = g.annotation_event_id
),
ruled AS (
    SELECT owned.*, context_rule(category, subcategory, op, node, annotation, is_in_node) AS context_rule_id
    FROM owned
)
SELECT
    run, collector, rank, part, trace_id, event_id, kind, name, class, category, subcategory, device, stream, start_ns,
    dur_ns, end_ns, defect, execution_step, op, op_event_id, input_dims, node, node_event_id, is_in_node, module,
    annotation,
    CASE WHEN phase IN ('optimizer', 'recompute') THEN phase ELSE COALESCE(context_phase(context_rule_id), phase) END
        AS phase,
    context_stage(context_rule_id) AS stage,
    context_confidence(context_rule_id) AS stage_confidence, context_rule_id, recompute_signal
FROM ruled
