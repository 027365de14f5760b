-- short_kernels: kernels that run shorter than a threshold.
--
-- One row is one kernel name within one trace that has launches shorter than the threshold. Such kernels cost more
-- in launching than in running, and are what fusion removes. Copies and memsets are not counted.
--
-- Parameters:
--   threshold_us (number: 0..) = 10: kernels shorter than this many microseconds
-- Example: traceanalyzer query STORE short_kernels -p threshold_us=5
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   name (text): name of the kernel
--   class (text): 'computation', 'communication' or 'memcpy'
--   category (text): what kind of work it is
--   events (count, summed): launches shorter than the threshold
--   total_ns (ns, summed): sum of their durations
--   mean_ns (ns): their mean duration
--   min_ns (ns): the shortest
--   max_ns (ns): the longest of them
--   all_events (count): launches of this kernel, short or not
--   share (0 to 1): total_ns as a part of the summed time of all kernels of the trace
WITH per_name AS (
    SELECT
        run, collector, rank, part, name, class, category,
        count(*) AS all_events,
        sum(dur_ns) AS all_ns,
        count(*) FILTER (dur_ns < $threshold_us * 1000) AS events,
        sum(dur_ns) FILTER (dur_ns < $threshold_us * 1000)::BIGINT AS total_ns,
        avg(dur_ns) FILTER (dur_ns < $threshold_us * 1000) AS mean_ns,
        min(dur_ns) FILTER (dur_ns < $threshold_us * 1000) AS min_ns,
        max(dur_ns) FILTER (dur_ns < $threshold_us * 1000) AS max_ns
    FROM kernels
    WHERE is_timed(defect)
    GROUP BY run, collector, rank, part, name, class, category
),
with_share AS (
    SELECT
        run, collector, rank, part, name, class, category, events, total_ns, mean_ns, min_ns, max_ns, all_events,
        total_ns / NULLIF(sum(all_ns) OVER (PARTITION BY run, collector, rank, part), 0) AS share
    FROM per_name
)
SELECT
    run, collector, rank, part, name, class, category, events, total_ns, mean_ns, min_ns, max_ns, all_events, share
FROM with_share
WHERE events > 0
ORDER BY run, collector, rank, part, total_ns DESC, name, class
