-- accumulate_grad: what adds gradients up: operators under autograd's AccumulateGrad, by shape.
--
-- One row is one operator with one set of input shapes under AccumulateGrad. `place` tells autograd's own accumulation
-- ('node') from hooks that run in the engine's span around it ('span'), as those of distributed data parallel do that add
-- a gradient to the main gradient. Time is the sum of durations, without collectives; the share is of all the operator's
-- time, wherever it was launched.
--
-- Empty: no work was launched under AccumulateGrad: no backward pass, or its operators were not recorded
-- Example: traceanalyzer query STORE accumulate_grad --rank 0
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   op (text): operator that launched the work
--   node (text): 'torch::autograd::AccumulateGrad'
--   place (text): 'node' or 'span'
--   input_dims (JSON): shapes of the operator's inputs
--   events (count, summed): pieces of GPU work
--   total_ns (ns, summed): sum of their durations
--   share (share): of the operator's time everywhere
WITH owned AS (
    SELECT
        run, collector, rank, part, op, node, CASE WHEN is_in_node THEN 'node' ELSE 'span' END AS place, input_dims,
        count(*) AS events, sum(dur_ns) AS total_ns
    FROM kernel_owners
    WHERE op IS NOT NULL
        AND class <> 'communication'
        AND is_timed(defect)
    GROUP BY ALL
),
shared AS (
    SELECT
        run, collector, rank, part, op, node, place, input_dims, events, total_ns,
        total_ns / NULLIF(sum(total_ns) OVER (PARTITION BY run, collector, rank, part, op), 0) AS share
    FROM owned
)
SELECT run, collector, rank, part, op, node, place, input_dims, events, total_ns::BIGINT AS total_ns, share
FROM shared
WHERE node LIKE '%AccumulateGrad'
ORDER BY run, collector, rank, part, total_ns DESC, op, place, input_dims
