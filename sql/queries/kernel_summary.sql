-- kernel_summary: GPU time by kernel name.
--
-- One row is one name and kind within one trace; copies and memsets are in it under their own names.
-- Times are sums of durations: kernels that run at the same time count each. Events without a sound time (see the
-- macro is_timed) are left out.
--
-- Parameters:
--   kind (text: all|kernel|memcpy|memset) = all: only events recorded as this kind
--   category (text: all|activation|attention|comm_collective|convolution|copy_cast|dropout_rng|elementwise|
--       embedding_index|fft|gemm_dense|gemm_grouped|inductor|loss|mega_moe|memcpy|memset|moe_comm|moe_permute|
--       moe_router|norm|optimizer|other|pooling|quantisation|reduction|rope|softmax|sort_topk|v4_fusion) = all:
--       only kernels of this category
-- Example: traceanalyzer query STORE kernel_summary -p category=gemm_dense
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   name (text): name of the kernel or copy
--   class (text): 'computation', 'communication' or 'memcpy'
--   category (text): what kind of work it is
--   subcategory (text): what exactly
--   events (count, summed): how often it ran
--   total_ns (ns, summed): sum of durations
--   mean_ns (ns): mean duration
--   median_ns (ns): median duration
--   min_ns (ns): shortest
--   max_ns (ns): longest
--   share (0 to 1): of the total_ns of all these rows of the trace
SELECT
    run, collector, rank, part, name, class, category, subcategory,
    count(*) AS events,
    sum(dur_ns)::BIGINT AS total_ns,
    avg(dur_ns) AS mean_ns,
    median(dur_ns) AS median_ns,
    min(dur_ns) AS min_ns,
    max(dur_ns) AS max_ns,
    sum(dur_ns) / NULLIF(sum(sum(dur_ns)) OVER (PARTITION BY run, collector, rank, part), 0) AS share
FROM gpu_events
WHERE is_timed(defect)
    AND ($kind = 'all' OR kind = $kind)
    AND ($category = 'all' OR category = $category)
GROUP BY run, collector, rank, part, kind, name, class, category, subcategory
ORDER BY run, collector, rank, part, total_ns DESC, name, kind
