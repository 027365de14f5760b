-- cpu_ops: operator calls on host threads.
--
-- One row is one call of a PyTorch operator.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   name (text): name of the operator
--   pid (number): process id, NULL when the trace has no number there
--   tid (number): thread id, NULL when the trace has no number there
--   pid_text (text): what the trace says where pid is NULL
--   tid_text (text): what the trace says where tid is NULL
--   start_ns (ns): start on the trace's own clock
--   dur_ns (ns): duration
--   end_ns (ns): end, start_ns + dur_ns
--   parent_event_id (number): event_id of the innermost host range around it (operator, annotation, call, Python frame)
--   depth (number): how many host ranges are around it on its thread
--   node_event_id (number): event_id of the innermost `autograd::engine::evaluate_function: ...` around it, itself included
--   module_event_id (number): event_id in `python_calls` of the innermost nn.Module call around it
--   external_id (number): id that ties an operator to what it launched, as the profiler gave it
--   sequence_number (number): pairs a forward operator with its backward
--   forward_tid (number): thread of the forward operator, on backward operators
--   input_dims (JSON): shapes of the inputs
--   input_types (JSON): types of the inputs
--   input_strides (JSON): strides of the inputs
--   concrete_inputs (JSON): values of the inputs that are no tensors
--   args (JSON): all arguments as recorded
SELECT
    run, collector, rank, part, trace_id, event_id,
    name,
    TRY_CAST(pid AS BIGINT) AS pid, TRY_CAST(tid AS BIGINT) AS tid,
    CASE WHEN TRY_CAST(pid AS BIGINT) IS NULL THEN pid END AS pid_text,
    CASE WHEN TRY_CAST(tid AS BIGINT) IS NULL THEN tid END AS tid_text,
    start_ns, dur_ns, start_ns + dur_ns AS end_ns,
    parent_event_id, depth, node_event_id, module_event_id, external_id, sequence_number, forward_tid, input_dims, input_types, input_strides, concrete_inputs, args
FROM raw.cpu_ops
LEFT JOIN derived.host_tree USING (run, trace_id, event_id)
