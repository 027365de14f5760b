-- kernel_names: the distinct names of GPU work of a trace, with the rule that classifies each.
--
-- One row is one name and kind of GPU work of one trace. The rules are tried on names, not on events.
-- The keys come from traceanalyzer/engine/kernel_key.py, since brackets nest.
-- What the collector recorded as a copy or memset is one, whatever its name; the rules then only name the subcategory.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   kind (text): 'kernel', 'memcpy' or 'memset', as recorded
--   name (text): name of the kernel or copy
--   kernel_key (text): the name in one spelling for all collectors: without suffixes, return type and parameters
--   cut_key (text): the key that rocm_trace_lite would leave of it, which cuts names before their first parenthesis
--   rule_id (text): the rule that fired, NULL when none did
--   class (text): 'computation', 'communication' or 'memcpy'
--   category (text): what kind of work it is, 'other' when no rule knows
--   subcategory (text): what exactly
--   tracelens_class (text): the class in TraceLens' narrower rule (macro tracelens_class)
--   why (text): why the rule stands where it stands
WITH names AS (
    SELECT DISTINCT run, collector, rank, part, trace_id, kind, name
    FROM raw.gpu_events
),
ruled AS (
    SELECT run, collector, rank, part, trace_id, kind, name, first_rule(name) AS rule_id
    FROM names
),
joined AS (
    SELECT
        run, collector, rank, part, trace_id, kind, name,
        -- a copy or memset keeps only a rule that agrees that it is one
        CASE WHEN kind = 'kernel' OR category = kind THEN rule_id END AS rule_id,
        class, category, subcategory, why
    FROM ruled
    LEFT JOIN kernel_rules USING (rule_id)
)
SELECT
    run, collector, rank, part, trace_id, kind, name, kernel_key,
    CASE WHEN collector = 'rocm_trace_lite' THEN kernel_key ELSE cut_key END AS cut_key,
    rule_id,
    CASE
        WHEN rule_id IS NOT NULL THEN class
        WHEN kind = 'memcpy' THEN 'memcpy'
        ELSE 'computation'
    END AS class,
    CASE
        WHEN rule_id IS NOT NULL THEN category
        WHEN kind IN ('memcpy', 'memset') THEN kind
        ELSE 'other'
    END AS category,
    CASE WHEN rule_id IS NOT NULL THEN subcategory ELSE 'unclassified' END AS subcategory,
    tracelens_class(kind, name) AS tracelens_class,
    CASE WHEN rule_id IS NOT NULL THEN why END AS why
FROM joined
LEFT JOIN kernel_keys USING (name)
ORDER BY kind, name
