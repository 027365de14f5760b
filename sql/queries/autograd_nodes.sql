-- autograd_nodes: operator time by the autograd node that owns it.
--
-- One row is one operator under one autograd node, with one set of input shapes. The node is the one whose span
-- `autograd::engine::evaluate_function: ...` the launch lies in, innermost; outside of the backward pass it is NULL.
-- `place` tells the node itself ('node') from what the engine does around it ('span'): hooks, such as those of distributed
-- data parallel that add a gradient to the main gradient, and sums of gradients. Time is the sum of durations, without
-- collectives; the share is of the operator's time under all nodes.
--
-- Parameters:
--   op (text) = : only this operator
--   shapes (boolean) = false: one row per set of input shapes
-- Empty: no launch of GPU work was recorded with operators around it
-- Example: traceanalyzer query STORE autograd_nodes -p op=aten::add_ --rank 0
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   op (text): operator that launched the work
--   node (text): autograd node, NULL outside of the backward pass
--   place (text): 'node' or 'span'; NULL outside of the backward pass
--   input_dims (JSON): shapes of the operator's inputs; NULL unless shapes=true
--   events (count, summed): pieces of GPU work
--   total_ns (ns, summed): sum of their durations
--   share (share): of the operator's time under all nodes
WITH owned AS (
    SELECT
        run, collector, rank, part, op, node,
        CASE WHEN node IS NULL THEN NULL WHEN is_in_node THEN 'node' ELSE 'span' END AS place,
        CASE WHEN $shapes THEN input_dims END AS input_dims,
        count(*) AS events, sum(dur_ns) AS total_ns
    FROM kernel_owners
    WHERE op IS NOT NULL
        AND class <> 'communication'
        AND is_timed(defect)
        AND ($op = '' OR op = $op)
    GROUP BY ALL
)
SELECT
    run, collector, rank, part, op, node, place, input_dims, events, total_ns::BIGINT AS total_ns,
    total_ns / NULLIF(sum(total_ns) OVER (PARTITION BY run, collector, rank, part, op), 0) AS share
FROM owned
ORDER BY run, collector, rank, part, total_ns DESC, op, node, place, input_dims
