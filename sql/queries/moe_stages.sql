-- moe_stages: the stages of mixture-of-experts layers.
--
-- One row is one stage and phase within one trace, as far as kernel names tell: routing, permutation, dispatch, grouped
-- GEMMs, activation, combine, and the waits for other ranks. MegaMoE runs dispatch and GEMM, and GEMM and combine, in
-- one launch. Times are sums of durations; events without a sound time (see the macro is_timed) are left out.
-- A grouped GEMM of hipBLASLt has the name of a dense one and is not here.
--
-- Empty: not recorded: no kernel of these traces has the name of a mixture-of-experts kernel.
-- Example: traceanalyzer query STORE moe_stages
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   stage (text): what the kernels do
--   phase (text): 'forward', 'backward' or 'recompute' by what launched them, else by the name; NULL where neither tells
--   context (text): what the kernels are in their place, as 'stage 2 weight gradient', where the launching operator tells
--   implementation (text): category of the kernels: 'mega_moe', 'moe_comm', 'gemm_grouped', 'moe_router', 'moe_permute'
--   events (count, summed): how often they ran
--   total_ns (ns, summed): sum of durations
--   mean_ns (ns): mean duration
--   share (0 to 1): of the summed durations of all GPU work of the trace
WITH stages AS (
    SELECT
        run, collector, rank, part, dur_ns,
        CASE WHEN category IN ('mega_moe', 'moe_comm', 'gemm_grouped', 'moe_router', 'moe_permute') THEN category END
            AS implementation,
        CASE
            WHEN category = 'moe_router' THEN 'route'
            WHEN category = 'moe_permute' THEN 'permute'
            WHEN category = 'gemm_grouped' AND subcategory = 'helper' THEN 'grouped GEMM helper'
            WHEN category = 'gemm_grouped' THEN 'grouped GEMM'
            WHEN subcategory = 'dispatch_gemm' THEN 'dispatch and GEMM'
            WHEN subcategory = 'gemm_combine' THEN 'GEMM and combine'
            WHEN subcategory = 'whole_layer' THEN 'whole layer'
            WHEN subcategory = 'prologue' THEN 'wait: routing exchange'
            WHEN subcategory = 'epoch' THEN 'wait: epoch'
            WHEN subcategory = 'sync_or_layout' THEN 'wait: counts and barriers'
            WHEN subcategory = 'swiglu' THEN 'activation'
            WHEN subcategory = 'wgrad_variable_k' THEN 'weight gradient'
            WHEN subcategory = 'mori_ep' AND contains(lower(name), 'combine') THEN 'combine'
            WHEN subcategory = 'mori_ep' AND contains(lower(name), 'dispatch') THEN 'dispatch'
            ELSE subcategory
        END AS stage,
        stage AS context,
        CASE
            WHEN phase IN ('forward', 'backward', 'recompute') THEN phase
            WHEN subcategory = 'wgrad_variable_k' OR regexp_matches(lower(name), '(_bwd|backward|wgrad|dgrad)')
                THEN 'backward'
            WHEN regexp_matches(lower(name), '(_fwd|forward)') THEN 'forward'
        END AS phase
    FROM kernel_owners
    WHERE is_timed(defect)
),
totals AS (
    SELECT
        run, collector, rank, part, stage, phase, context, implementation,
        count(*) AS events,
        sum(dur_ns)::BIGINT AS total_ns,
        avg(dur_ns) AS mean_ns
    FROM stages
    WHERE implementation IS NOT NULL
    GROUP BY run, collector, rank, part, stage, phase, context, implementation
),
everything AS (
    SELECT run, collector, rank, part, sum(dur_ns) AS all_ns
    FROM stages
    GROUP BY run, collector, rank, part
)
SELECT
    t.run, t.collector, t.rank, t.part, stage, phase, context, implementation, events, total_ns, mean_ns,
    total_ns / NULLIF(all_ns, 0) AS share
FROM totals AS t
JOIN everything AS e
    ON e.run = t.run AND e.collector = t.collector AND e.rank IS NOT DISTINCT FROM t.rank AND e.part = t.part
ORDER BY t.run, t.collector, t.rank, t.part, total_ns DESC, stage, phase, context
