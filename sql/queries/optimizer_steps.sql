-- optimizer_steps: gradient norm, clipping and update of each step, each from its first kernel to its last.
--
-- One row is one step of one device. The parts are told apart by the names of their kernels (category 'optimizer'), so they
-- are found where the annotation `Optimizer.step#` does not reach, which covers the update only. A part's time goes from
-- the start of its first kernel to the end of its last one within the step in which they start; other work in between
-- counts in it.
--
-- Empty: no kernel of an optimizer was recognised: see kernel_categories -p explain=true
-- Example: traceanalyzer query STORE optimizer_steps
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   device (number): index of the GPU as the collector numbers it
--   step (number): step of the view `steps`; NULL before the first one
--   grad_norm_ns (ns): first to last kernel of the gradients' norm; NULL when there is none
--   clip_ns (ns): first to last kernel of clipping or unscaling
--   update_ns (ns): first to last kernel of the update (Adam, SGD, ...)
--   busy_ns (ns, summed): sum of the durations of all of them
--   kernels (count, summed): how many kernels they are
SELECT
    run, collector, rank, part, device, execution_step AS step,
    max(end_ns) FILTER (subcategory = 'grad_norm') - min(start_ns) FILTER (subcategory = 'grad_norm') AS grad_norm_ns,
    max(end_ns) FILTER (subcategory = 'clip_or_unscale') - min(start_ns) FILTER (subcategory = 'clip_or_unscale')
        AS clip_ns,
    max(end_ns) FILTER (subcategory NOT IN ('grad_norm', 'clip_or_unscale'))
        - min(start_ns) FILTER (subcategory NOT IN ('grad_norm', 'clip_or_unscale')) AS update_ns,
    sum(dur_ns)::BIGINT AS busy_ns, count(*) AS kernels
FROM kernels
WHERE category = 'optimizer'
    AND is_timed(defect)
GROUP BY run, collector, rank, part, device, execution_step
ORDER BY run, collector, rank, part, device, step
