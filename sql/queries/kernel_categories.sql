-- kernel_categories: GPU time by kernel category.
--
-- One row is one subcategory within one trace; with explain, one name of GPU work, with the rule that classified it.
-- Categories come from the rules of sql/rules/kernel_rules.csv, or of the file given by --rules, tried in their order on
-- the name. Times are sums of durations: kernels that run at the same time count each. Events without a sound time (see
-- the macro is_timed) are left out. What no rule knows is 'other', so its share is always to be seen.
--
-- Parameters:
--   explain (boolean) = false: one row per name, with its rule
--   by (text: subcategory|category) = subcategory: one row per subcategory, or per category
-- Example: traceanalyzer query STORE kernel_categories -p explain=true
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   class (text): 'computation', 'communication' or 'memcpy'; of a category, all that it holds
--   category (text): what kind of work it is
--   subcategory (text): what exactly; NULL by category
--   rule_id (text): the rules that fired, NULL when none did
--   name (text): with explain, the name; else NULL
--   why (text): with explain, what the rule says of itself; else NULL
--   names (count): distinct names
--   events (count, summed): how often they ran
--   total_ns (ns, summed): sum of durations
--   mean_ns (ns): mean duration
--   median_ns (ns): median duration
--   min_ns (ns): shortest
--   max_ns (ns): longest
--   share (0 to 1): of the total_ns of all rows of the trace
WITH events AS (
    SELECT
        run, collector, rank, part, kind, name, class, category, rule_id, dur_ns,
        CASE WHEN $explain OR $by = 'subcategory' THEN subcategory END AS subcategory,
        CASE WHEN $explain THEN name END AS shown_name,
        CASE WHEN $explain THEN kind END AS shown_kind
    FROM gpu_events
    WHERE is_timed(defect)
),
totals AS (
    SELECT
        run, collector, rank, part, category, subcategory, shown_name, shown_kind,
        string_agg(DISTINCT class, ', ' ORDER BY class) AS class,
        string_agg(DISTINCT rule_id, ', ' ORDER BY rule_id) AS rule_id,
        count(DISTINCT (kind, name)) AS names,
        count(*) AS events,
        sum(dur_ns)::BIGINT AS total_ns,
        avg(dur_ns) AS mean_ns,
        median(dur_ns) AS median_ns,
        min(dur_ns) AS min_ns,
        max(dur_ns) AS max_ns
    FROM events
    GROUP BY run, collector, rank, part, category, subcategory, shown_name, shown_kind
),
reasons AS (
    SELECT DISTINCT kind AS shown_kind, name AS shown_name, why
    FROM kernel_names
    WHERE $explain
)
SELECT
    run, collector, rank, part, class, category, subcategory, rule_id, totals.shown_name AS name, why,
    names, events, total_ns, mean_ns, median_ns, min_ns, max_ns,
    total_ns / NULLIF(sum(total_ns) OVER (PARTITION BY run, collector, rank, part), 0) AS share
FROM totals
LEFT JOIN reasons
    ON reasons.shown_kind = totals.shown_kind AND reasons.shown_name IS NOT DISTINCT FROM totals.shown_name
ORDER BY run, collector, rank, part, total_ns DESC, category, subcategory, name
