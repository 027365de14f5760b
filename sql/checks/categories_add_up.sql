-- categories_add_up: the totals by category and by kernel are the GPU time of the trace.
--
-- One row is one trace whose totals differ.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank
--   detail (text): the totals
WITH everything AS (
    SELECT run, collector, rank, part, sum(dur_ns) AS total_ns, count(*) AS events
    FROM gpu_events
    WHERE is_timed(defect)
    GROUP BY run, collector, rank, part
),
by_category AS (
    SELECT run, collector, COALESCE(rank, -1) AS rank_key, part, sum(total_ns) AS total_ns, sum(events) AS events
    FROM queries.kernel_categories
    GROUP BY run, collector, rank_key, part
),
by_kernel AS (
    SELECT run, collector, COALESCE(rank, -1) AS rank_key, part, sum(total_ns) AS total_ns, sum(events) AS events
    FROM queries.kernel_summary
    GROUP BY run, collector, rank_key, part
)
SELECT
    e.run, e.collector, e.rank, e.part,
    format(
        '{} ns of {} events: {} ns by category, {} ns by kernel', e.total_ns, e.events, c.total_ns, k.total_ns
    ) AS detail
FROM everything AS e
LEFT JOIN by_category AS c
    ON c.run = e.run AND c.collector = e.collector AND c.rank_key = COALESCE(e.rank, -1) AND c.part = e.part
LEFT JOIN by_kernel AS k
    ON k.run = e.run AND k.collector = e.collector AND k.rank_key = COALESCE(e.rank, -1) AND k.part = e.part
WHERE (e.total_ns, e.events) IS DISTINCT FROM (c.total_ns, c.events)
    OR (e.total_ns, e.events) IS DISTINCT FROM (k.total_ns, k.events)
ORDER BY e.run, e.collector, e.rank, e.part
