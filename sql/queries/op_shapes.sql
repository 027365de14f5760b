-- op_shapes: GPU time by the operator that launched it and the shapes of its inputs.
--
-- One row is one operator's name with one set of shapes, types, strides and other inputs; times are those of op_summary.
-- Shapes are NULL where the profiler did not record them.
--
-- Parameters:
--   link_rule (text: correlation|tracelens) = correlation: which launch a kernel belongs to, as in op_summary
--   op (text) = : only this operator
-- Uses: tracelens_links, tracelens_calls when link_rule=tracelens; gpu_owners, gpu_launches when link_rule=correlation
-- Example: traceanalyzer query STORE op_shapes -p op=aten::mm
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   op (text): name of the operator, or of the runtime call where there is none; NULL where no launch was recorded
--   input_dims (JSON): shapes of the inputs
--   input_types (JSON): types of the inputs
--   input_strides (JSON): strides of the inputs
--   concrete_inputs (JSON): values of the inputs that are no tensors
--   calls (count, summed): calls of the operator that launched work other than collectives
--   events (count, summed): pieces of work that it launched, without collectives
--   direct_ns (ns, summed): time of the work that it launched itself
--   mean_ns (ns): direct time of a call, on average
--   subtree_ns (ns): the same with what operators within it launched, and collectives
--   share (share, summed): of the direct time of all rows
SELECT
    run, collector, rank, part, op, input_dims, input_types, input_strides, concrete_inputs,
    count(*) AS calls, sum(events)::BIGINT AS events, sum(direct_ns)::BIGINT AS direct_ns, avg(direct_ns) AS mean_ns,
    sum(subtree_ns)::BIGINT AS subtree_ns,
    sum(direct_ns) / NULLIF(sum(sum(direct_ns)) OVER (PARTITION BY run, collector, rank, part), 0) AS share
FROM launchers($link_rule)
WHERE $op = '' OR op = $op
GROUP BY
    run, collector, rank, part, op, input_dims, input_types, input_strides, concrete_inputs
ORDER BY run, collector, rank, part, direct_ns DESC, op, input_dims, concrete_inputs
