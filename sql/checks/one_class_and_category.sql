-- one_class_and_category: every piece of GPU work is in `gpu_events` once, with one class and one category.
--
-- One row is one trace with GPU work that is lost, doubled or not classified.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank
--   detail (text): what is wrong
WITH stored AS (
    SELECT run, collector, rank, part, trace_id, count(*) AS events
    FROM raw.gpu_events
    GROUP BY run, collector, rank, part, trace_id
),
classed AS (
    SELECT
        run, trace_id,
        count(*) AS events,
        count(DISTINCT event_id) AS event_ids,
        count(*) FILTER (
            category IS NOT NULL AND subcategory IS NOT NULL
            AND class IN ('computation', 'communication', 'memcpy')) AS classified
    FROM gpu_events
    GROUP BY run, trace_id
)
SELECT
    run, collector, rank, part,
    format(
        '{} events are stored, {} seen, {} distinct, {} classified', s.events, c.events, c.event_ids, c.classified
    ) AS detail
FROM stored AS s
LEFT JOIN classed AS c USING (run, trace_id)
WHERE (s.events, s.events, s.events) IS DISTINCT FROM (c.events, c.event_ids, c.classified)
ORDER BY run, collector, rank, part
