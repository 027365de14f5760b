-- recompute: GPU time of what checkpoints compute again in the backward pass, by operator.
--
-- One row is one operator whose work is computed again, and the signal by which that shows (see kernel_owners). Times are
-- sums of durations. `forward_ns` is what the operator took in the forward pass, to compare.
--
-- Empty: no recomputation found: there is none, or operators were not recorded
-- Example: traceanalyzer query STORE recompute --rank 0
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   op (text): operator that launched the work
--   signal (text): 'frame', 'checkpoint node' or 'forward in backward'
--   events (count, summed): pieces of GPU work computed again
--   total_ns (ns, summed): sum of their durations
--   forward_ns (ns): sum of the durations of the operator's work in the forward pass
--   share (share, summed): of the durations of all GPU work of the trace
WITH totals AS (
    SELECT
        run, collector, rank, part, op, max(recompute_signal) AS signal,
        count(*) FILTER (phase = 'recompute') AS events,
        sum(dur_ns) FILTER (phase = 'recompute') AS total_ns,
        sum(dur_ns) FILTER (phase = 'forward') AS forward_ns,
        sum(sum(dur_ns)) OVER (PARTITION BY run, collector, rank, part) AS all_ns
    FROM kernel_owners
    WHERE is_timed(defect)
    GROUP BY run, collector, rank, part, op
)
SELECT
    run, collector, rank, part, op, signal, events, total_ns::BIGINT AS total_ns,
    COALESCE(forward_ns, 0)::BIGINT AS forward_ns, total_ns / NULLIF(all_ns, 0) AS share
FROM totals
WHERE events > 0
ORDER BY run, collector, rank, part, total_ns DESC, op
