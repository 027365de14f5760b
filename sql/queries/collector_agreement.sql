-- collector_agreement: what several collectors saw of one workload, kernel by kernel.
--
-- One row is one kernel, as all collectors of a run saw it; by=category, one category; by=run, the run in one sentence.
-- Collectors record separate runs of the same training, so no time stamps are compared, but what is the same in every
-- step: how often a kernel comes in a step of a rank, and its median duration. Of traces with at least four steps the
-- first and the last are left out. Kernels are matched by `kernel_key`; what rocm_trace_lite cut, by what it would have
-- left of the whole name. If some ranks were recorded by all collectors, only those are compared. Copies are matched by what they do: a collector has them as copies, or as the runtime's
-- (blit) kernels.
--
-- Durations differ when their medians are further apart than the expected noise: noise_percent of the shorter one, of
-- kernels below 10 us tiny_noise_percent, but at least the 41 ns of a clock tick of MI350 and of roctracer's rounding.
-- Durations of collectives hold the wait for other ranks, and are not compared.
--
-- Compares collectors. The verdict is 'agree'; 'explained' where collectors must differ, with the reason; 'differ' where nothing explains it.
--
-- Parameters:
--   by (text: kernel|category|run) = kernel: one row per kernel, per category, or one sentence per run
--   noise_percent (number: 0..100) = 4: durations that differ by no more agree
--   tiny_noise_percent (number: 0..100) = 10: the same for kernels shorter than 10 us
-- Empty: no run has traces of several collectors; ingest them with one --run name
-- Example: traceanalyzer query STORE collector_agreement
-- Columns:
--   run (text): name of the training run
--   collector (text): the collectors that are compared
--   rank (number): NULL: all ranks are compared
--   part (number): NULL: all parts are compared
--   kernel_key (text): the kernel's name in one spelling; NULL by category and run
--   category (text): its category; NULL by run
--   verdict (text): 'agree', 'explained' or 'differ'; of several kernels the worst
--   kernels (count): how many different kernels that are
--   kernels_that_differ (count): how many of them have the verdict 'differ'
--   pytorch_per_step (number): events in a step of a rank as the PyTorch profiler saw it, the median; NULL when it has no traces
--   rocprofv3_per_step (number): the same of rocprofv3
--   rocm_trace_lite_per_step (number): the same of rocm_trace_lite
--   pytorch_ns (ns): median duration, by category the time in a step on average; NULL when not recorded
--   rocprofv3_ns (ns): the same of rocprofv3
--   rocm_trace_lite_ns (ns): the same of rocm_trace_lite
--   difference_ns (ns): between the longest and the shortest of them; NULL when not compared
--   expected_noise_ns (ns): what they may differ by
--   reason (text): what differs, and why; by run the sentence
WITH recorded AS (
    -- which collectors each run has, where it has several
    SELECT
        run, bool_or(collector = 'pytorch') AS has_pytorch, bool_or(collector = 'rocprofv3') AS has_rocprofv3,
        bool_or(collector = 'rocm_trace_lite') AS has_rocm_trace_lite,
        string_agg(DISTINCT collector, ', ' ORDER BY collector) AS collectors
    FROM traces
    GROUP BY run
    HAVING count(DISTINCT collector) > 1
),
names AS (
    -- what is compared under one key
    SELECT
        run, trace_id, collector, kind, name, class, category,
        CASE
            WHEN name LIKE '%DtoD%' OR name LIKE '%DEVICE_TO_DEVICE%' THEN 'copy within a GPU'
            WHEN kind = 'kernel' AND class = 'memcpy' THEN 'copy within a GPU'
            WHEN kind = 'memset' OR category = 'memset' THEN 'fill'
            ELSE kernel_key
        END AS key,
        cut_key,
        kind = 'kernel' AND (class = 'memcpy' OR category = 'memset') AS is_blit,
        CASE collector
            WHEN 'rocm_trace_lite' THEN regexp_matches(name, '^kernel_0x[0-9a-f]+$')
            WHEN 'rocprofv3' THEN regexp_matches(name, '^kernel_\d+$')
            ELSE false
        END AS is_unnamed
    FROM kernel_names
    JOIN recorded USING (run)
),
cut AS (
    -- names that rocm_trace_lite cut are those that no other collector has
    SELECT run, key AS cut_key FROM names WHERE collector = 'rocm_trace_lite'
    EXCEPT
    SELECT run, key AS cut_key FROM names WHERE collector <> 'rocm_trace_lite'
),
keyed AS (
    SELECT
        n.run, trace_id, n.collector, kind, name, class, category, is_blit, is_unnamed,
        CASE WHEN c.cut_key IS NULL THEN key ELSE n.cut_key END AS key
    FROM names AS n
    LEFT JOIN cut AS c ON c.run = n.run AND c.cut_key = n.cut_key
),
common AS (
    -- ranks can differ, so those are compared that all collectors recorded, if there are any
    SELECT t.run, t.rank
    FROM traces AS t
    JOIN (SELECT run, count(DISTINCT collector) AS collectors FROM traces GROUP BY run) AS c USING (run)
    WHERE t.rank IS NOT NULL
    GROUP BY t.run, t.rank, c.collectors
    HAVING count(DISTINCT t.collector) = c.collectors
),
executed AS MATERIALIZED (
    -- everything behind this is small: one row per name, device and pair of steps
    SELECT
        run, collector, trace_id, device, kind, name, launch_step, execution_step,
        count(*) AS events, sum(dur_ns) AS total_ns, list(dur_ns) AS durations_ns
    FROM gpu_events
    WHERE is_timed(defect)
        AND run IN (SELECT run FROM recorded)
        AND (run NOT IN (SELECT run FROM common) OR (run, rank) IN (SELECT (run, rank) FROM common))
    GROUP BY ALL
),
ways AS (
    -- steps are those of the launches where launches were recorded
    SELECT run, trace_id, COALESCE(sum(events) FILTER (launch_step IS NOT NULL), 0) > 0.9 * sum(events) AS by_launch
    FROM executed
    GROUP BY run, trace_id
),
steady AS (
    SELECT run, trace_id, step
    FROM (SELECT DISTINCT run, trace_id, step FROM steps)
    QUALIFY count(*) OVER (PARTITION BY run, trace_id) < 4
        OR row_number() OVER (PARTITION BY run, trace_id ORDER BY step)
            BETWEEN 2 AND count(*) OVER (PARTITION BY run, trace_id) - 1
),
work AS MATERIALIZED (
    SELECT
        e.run, e.collector, e.trace_id, device, key, class, category, is_blit, is_unnamed, kind = 'memcpy' AS is_copy,
        events, total_ns, durations_ns, CASE WHEN by_launch THEN launch_step ELSE execution_step END AS step,
        s.step IS NOT NULL AS is_steady
    FROM executed AS e
    JOIN ways USING (run, trace_id)
    JOIN keyed USING (run, trace_id, kind, name)
    LEFT JOIN steady AS s
        ON s.run = e.run AND s.trace_id = e.trace_id
        AND s.step = CASE WHEN by_launch THEN launch_step ELSE execution_step END
),
places AS (
    -- the steps of each device, in which a kernel can be counted
    SELECT run, collector, trace_id, device, step
    FROM (SELECT DISTINCT run, collector, trace_id, device FROM work)
    JOIN steady USING (run, trace_id)
),
per_place AS (
    SELECT run, collector, trace_id, device, step, key, sum(events)::BIGINT AS events, sum(total_ns) AS total_ns
    FROM work
    WHERE is_steady
    GROUP BY run, collector, trace_id, device, step, key
),
medians AS (
    SELECT run, collector, key, quantile_disc(dur_ns, 0.5) AS median_ns
    FROM (SELECT run, collector, key, unnest(durations_ns) AS dur_ns FROM work WHERE is_steady)
    GROUP BY run, collector, key
),
counts AS (
    -- a place without the kernel counts 0
    SELECT
        run, collector, key,
        list_aggregate(list_resize(list(events), any_value(places), 0), 'quantile_disc', 0.5) AS per_step,
        CASE WHEN count(*) < any_value(places) THEN 0 ELSE min(events) END AS least,
        max(events) AS most,
        sum(total_ns) / any_value(places) AS step_ns
    FROM per_place
    JOIN (SELECT run, collector, count(*) AS places FROM places GROUP BY run, collector) USING (run, collector)
    GROUP BY run, collector, key
),
seen AS (
    SELECT
        run, collector, key, mode(class) AS class, mode(category) AS category, bool_or(is_blit) AS is_blit,
        bool_or(NOT is_blit) AS is_other, bool_or(is_copy) AS is_copy, bool_or(is_unnamed) AS is_unnamed,
        bool_or(is_steady) AS is_steady
    FROM work
    GROUP BY run, collector, key
),
graphs AS (
    SELECT DISTINCT e.run, key
    FROM (
        SELECT run, trace_id, event_id
        FROM runtime_calls
        WHERE name IN ('hipGraphLaunch', 'cudaGraphLaunch')
    ) AS c
    JOIN gpu_events AS e ON c.run = e.run AND c.trace_id = e.trace_id AND c.event_id = e.runtime_event_id
    JOIN keyed AS k ON k.run = e.run AND k.trace_id = e.trace_id AND k.kind = e.kind AND k.name = e.name
),
kernels AS (
    SELECT
        run, key, mode(class) AS class, mode(category) AS category, bool_or(is_copy) AS is_copy,
        bool_or(is_blit) AND bool_or(is_other) AS has_both_forms, bool_or(is_unnamed) AS is_unnamed,
        bool_or(is_steady) AS is_steady
    FROM seen
    GROUP BY run, key
),
limits_of AS (
    -- what a collector cannot see of which kernel
    SELECT
        k.run, k.key, collector,
        CASE
            WHEN collector <> 'rocm_trace_lite' OR s.key IS NOT NULL THEN NULL
            WHEN k.class = 'communication' AND NOT EXISTS (
                SELECT 1 FROM seen AS c
                WHERE c.run = k.run AND c.collector = 'rocm_trace_lite' AND c.class = 'communication'
            ) THEN 'rocm_trace_lite sees no collectives in its lite mode'
            WHEN k.is_copy THEN 'rocm_trace_lite sees no copies by the DMA engines'
            WHEN g.key IS NOT NULL THEN 'rocm_trace_lite sees what graphs replay in its mode full only'
        END AS limit_reason
    FROM kernels AS k
    JOIN (SELECT DISTINCT run, collector FROM work) USING (run)
    LEFT JOIN seen AS s USING (run, key, collector)
    LEFT JOIN graphs AS g USING (run, key)
),
compared AS (
    SELECT
        run, key, collector, class, category, limit_reason, is_steady AND s_steady IS NOT NULL AS is_seen,
        -- a collector that cannot see it has no count, one that could has 0
        CASE WHEN limit_reason IS NULL THEN COALESCE(per_step, 0) END AS per_step,
        CASE WHEN limit_reason IS NULL THEN COALESCE(least, 0) END AS least,
        CASE WHEN limit_reason IS NULL THEN COALESCE(most, 0) END AS most,
        CASE WHEN class <> 'communication' THEN median_ns END AS compared_ns,
        median_ns, step_ns, was_seen, has_both_forms, is_copy AS has_copies
    FROM limits_of
    JOIN kernels USING (run, key)
    LEFT JOIN counts USING (run, key, collector)
    LEFT JOIN (
        SELECT run, key, collector, median_ns, true AS was_seen, nullif(is_steady, false) AS s_steady
        FROM seen
        LEFT JOIN medians USING (run, key, collector)
    ) USING (run, key, collector)
),
copies AS (
    -- of all copies together, how many per step
    SELECT run, count(*) > 1 AND count(DISTINCT copies) = 1 AS are_alike
    FROM (
        SELECT run, collector, sum(per_step) AS copies
        FROM compared
        WHERE class = 'memcpy' AND collector <> 'rocm_trace_lite'
        GROUP BY run, collector
    )
    GROUP BY run
),
joined AS (
    SELECT
        run, key, class, category,
        any_value(per_step) FILTER (collector = 'pytorch') AS pytorch_per_step,
        any_value(per_step) FILTER (collector = 'rocprofv3') AS rocprofv3_per_step,
        any_value(per_step) FILTER (collector = 'rocm_trace_lite') AS rocm_trace_lite_per_step,
        any_value(median_ns) FILTER (collector = 'pytorch') AS pytorch_ns,
        any_value(step_ns) FILTER (collector = 'pytorch') AS pytorch_step_ns,
        any_value(median_ns) FILTER (collector = 'rocprofv3') AS rocprofv3_ns,
        any_value(step_ns) FILTER (collector = 'rocprofv3') AS rocprofv3_step_ns,
        any_value(median_ns) FILTER (collector = 'rocm_trace_lite') AS rocm_trace_lite_ns,
        any_value(step_ns) FILTER (collector = 'rocm_trace_lite') AS rocm_trace_lite_step_ns,
        max(compared_ns) - min(compared_ns) AS difference_ns,
        CASE WHEN count(compared_ns) > 1 THEN GREATEST(
            min(compared_ns) * (CASE WHEN min(compared_ns) < 10000 THEN $tiny_noise_percent ELSE $noise_percent END) / 100,
            41
        )::BIGINT END AS expected_noise_ns,
        any_value(limit_reason) AS limit_reason,
        count(DISTINCT per_step) > 1 AND NOT (bool_and(most > least) AND max(least) <= min(most)) AS counts_differ,
        bool_and(most > least) AND max(least) <= min(most) AS varies_everywhere,
        -- the same in most steps, but in some steps of one collector only
        count(DISTINCT (least, most)) FILTER (per_step IS NOT NULL) > 1 AND bool_or(least = most) AS counts_vary,
        string_agg(
            collector || ' ' || least || CASE WHEN most > least THEN ' to ' || most ELSE '' END,
            ', ' ORDER BY collector
        ) FILTER (per_step IS NOT NULL) AS counted,
        arg_max(collector, compared_ns) AS longest,
        bool_or(has_both_forms) AS has_both_forms, bool_or(has_copies) AS has_copies,
        bool_or(is_seen) AS is_in_steps,
        bool_or(was_seen IS NULL AND limit_reason IS NULL) AS is_lacking
    FROM compared
    GROUP BY run, key, class, category
),
judged AS (
    SELECT
        j.*, is_unnamed,
        class = 'memcpy' AND COALESCE(are_alike, false) AS copies_alike,
        COALESCE(
            has_copies AND counts_differ
            AND rocm_trace_lite_per_step < LEAST(pytorch_per_step, rocprofv3_per_step)
            AND COALESCE(pytorch_per_step = rocprofv3_per_step, true), false
        ) AS lacks_copies,
        COALESCE(difference_ns > expected_noise_ns, false) AS durations_differ
    FROM joined AS j
    JOIN (SELECT run, key, is_unnamed FROM kernels) USING (run, key)
    LEFT JOIN copies USING (run)
),
reasoned AS (
    SELECT
        *,
        CASE
            WHEN NOT is_in_steps AND is_lacking THEN 'only outside of steps: warm-up that not all collectors recorded'
            WHEN (counts_differ OR counts_vary) AND is_unnamed THEN 'its name is not in the trace: ' || counted
            WHEN lacks_copies THEN 'rocm_trace_lite sees no copies by the DMA engines: ' || counted
            WHEN (counts_differ OR counts_vary) AND copies_alike THEN 'copies as blit kernels, all of one name: ' || counted
            WHEN counts_differ OR counts_vary THEN 'events per step: ' || counted
            WHEN varies_everywhere THEN 'differs from step to step in all: ' || counted
            WHEN has_both_forms THEN 'copies or fills as blit kernels'
        END AS count_reason,
        CASE
            WHEN durations_differ THEN longest || ' takes ' || COALESCE(round(100.0 * difference_ns
                / NULLIF(LEAST(pytorch_ns, rocprofv3_ns, rocm_trace_lite_ns), 0), 1) || ' %', difference_ns || ' ns')
                || ' longer'
            WHEN difference_ns = 1 AND pytorch_ns < rocprofv3_ns THEN 'roctracer shortens by 1 ns'
            WHEN difference_ns BETWEEN 1 AND 41 THEN 'within a clock tick of 40 ns'
        END AS duration_reason,
        durations_differ
            OR ((counts_differ OR counts_vary) AND NOT is_unnamed AND NOT copies_alike AND NOT lacks_copies AND (is_in_steps OR NOT is_lacking))
            AS differs
    FROM judged
),
by_kernel AS (
    SELECT
        run, key AS kernel_key, category, class,
        CASE
            WHEN differs THEN 'differ'
            WHEN limit_reason IS NOT NULL OR count_reason IS NOT NULL THEN 'explained'
            ELSE 'agree'
        END AS verdict,
        1 AS kernels, differs::INT AS kernels_that_differ,
        pytorch_per_step, rocprofv3_per_step, rocm_trace_lite_per_step, pytorch_ns, rocprofv3_ns, rocm_trace_lite_ns,
        pytorch_step_ns, rocprofv3_step_ns, rocm_trace_lite_step_ns,
        difference_ns, expected_noise_ns, concat_ws('; ', limit_reason, count_reason, duration_reason) AS reason
    FROM reasoned
),
sources AS (
    SELECT run, string_agg(collector || ' ' || steps || ' by ' || source, ', ' ORDER BY collector) AS found
    FROM (
        SELECT run, collector, max(n) AS steps, min(source) AS source
        FROM (SELECT run, collector, trace_id, source, count(DISTINCT step) AS n FROM steps GROUP BY ALL)
        GROUP BY run, collector
    )
    GROUP BY run
),
by_category AS (
    SELECT
        run, category,
        max_by(verdict, list_position(['agree', 'explained', 'differ'], verdict)) AS verdict,
        count(*) AS kernels, sum(kernels_that_differ) AS kernels_that_differ,
        sum(pytorch_per_step) AS pytorch_per_step, sum(rocprofv3_per_step) AS rocprofv3_per_step,
        sum(rocm_trace_lite_per_step) AS rocm_trace_lite_per_step,
        sum(pytorch_step_ns) AS pytorch_ns, sum(rocprofv3_step_ns) AS rocprofv3_ns,
        sum(rocm_trace_lite_step_ns) AS rocm_trace_lite_ns,
        string_agg(DISTINCT reason, '; ' ORDER BY reason) FILTER (verdict <> 'agree') AS reason
    FROM by_kernel
    GROUP BY run, category
),
by_run AS (
    SELECT
        run,
        max_by(verdict, list_position(['agree', 'explained', 'differ'], verdict)) AS verdict,
        count(*) AS kernels, sum(kernels_that_differ) AS kernels_that_differ,
        any_value(collectors) || ' agree on ' || count(*) FILTER (verdict = 'agree') || ' of ' || count(*) || ' kernels, '
        || COALESCE(round(100.0 * sum(step_ns) FILTER (verdict = 'agree') / NULLIF(sum(step_ns), 0), 1), 0)
        || ' % of the GPU time; ' || count(*) FILTER (verdict = 'explained') || ' must differ, '
        || CASE sum(kernels_that_differ)
            WHEN 0 THEN 'none differs without a reason'
            ELSE sum(kernels_that_differ) || ' differ without a reason, the longest of them '
                || arg_max(left(kernel_key, 80), step_ns) FILTER (verdict = 'differ')
        END
        -- where most differ, it is the steps
        || CASE WHEN 2 * sum(kernels_that_differ) > count(*) THEN '; are the steps the same? ' || any_value(found) ELSE '' END
            AS reason
    FROM (
        SELECT
            run, kernel_key, verdict, kernels_that_differ,
            COALESCE(pytorch_step_ns, rocprofv3_step_ns, rocm_trace_lite_step_ns, 0) AS step_ns
        FROM by_kernel
    )
    JOIN recorded USING (run)
    JOIN sources USING (run)
    GROUP BY run
),
answer AS (
    FROM by_kernel WHERE $by = 'kernel'
    UNION ALL BY NAME
    FROM by_category WHERE $by = 'category'
    UNION ALL BY NAME
    FROM by_run WHERE $by = 'run'
)
SELECT
    run, collectors AS collector, NULL::INTEGER AS rank, NULL::INTEGER AS part, kernel_key, category, verdict,
    kernels::BIGINT AS kernels, kernels_that_differ::BIGINT AS kernels_that_differ,
    pytorch_per_step::BIGINT AS pytorch_per_step, rocprofv3_per_step::BIGINT AS rocprofv3_per_step,
    rocm_trace_lite_per_step::BIGINT AS rocm_trace_lite_per_step,
    pytorch_ns::BIGINT AS pytorch_ns, rocprofv3_ns::BIGINT AS rocprofv3_ns,
    rocm_trace_lite_ns::BIGINT AS rocm_trace_lite_ns, difference_ns, expected_noise_ns, nullif(reason, '') AS reason
FROM answer
JOIN recorded USING (run)
ORDER BY
    run, list_position(['differ', 'explained', 'agree'], verdict),
    COALESCE(pytorch_step_ns, pytorch_ns, rocprofv3_step_ns, rocprofv3_ns, rocm_trace_lite_ns) DESC NULLS LAST,
    kernel_key, category
