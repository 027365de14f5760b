-- kernel_names: distinct names of GPU work, with the category of each and the rule that gave it.
--
-- One row is one name and kind of GPU work of one trace, on any of its devices.
--
-- Columns: as derived/kernel_names
SELECT
    run, collector, rank, part, trace_id, kind, name, kernel_key, cut_key, rule_id,
    class, category, subcategory, tracelens_class, why
FROM derived.kernel_names
