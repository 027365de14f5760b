-- steps_by: the steps that begin with kernels of a pattern, as a table with the columns of `steps`.
--
-- `steps_by('')` is `steps` itself. `steps_by('l2norm')` begins a step at each kernel whose name matches the regular
-- expression (in any case, anywhere in the name); of several in a burst at the first one. A burst begins behind more than
-- half of the longest distance between two of them; if bursts then differ in size, of the median distance.
--
-- Columns: as views/steps
CREATE OR REPLACE MACRO steps_by(pattern) AS TABLE
WITH matches AS (
    SELECT
        run, collector, rank, part, trace_id, device, name, start_ns, event_id,
        row_number() OVER in_turn AS occurrence,
        start_ns - lag(start_ns) OVER in_turn AS gap_ns
    FROM gpu_events
    WHERE pattern <> ''
        AND is_timed(defect)
        AND regexp_matches(name, pattern, 'i')
    WINDOW in_turn AS (PARTITION BY run, trace_id, device ORDER BY start_ns, event_id)
),
limits AS (
    SELECT
        run, trace_id, device, count(*) AS matched,
        unnest(quantile_disc(gap_ns, [1, 0.5])) / 2 AS least_gap_ns, unnest([1, 2]) AS way
    FROM matches
    GROUP BY run, trace_id, device
),
bursts AS (
    SELECT
        run, collector, rank, part, trace_id, device, way, name, start_ns, event_id,
        lead(occurrence, 1, matched + 1) OVER (PARTITION BY run, trace_id, device, way ORDER BY occurrence) - occurrence
            AS events
    FROM matches
    JOIN limits USING (run, trace_id, device)
    WHERE gap_ns IS NULL OR gap_ns > least_gap_ns
),
ways AS (
    SELECT run, trace_id, device, min(way) FILTER (is_alike OR way = 2) AS way
    FROM (
        SELECT run, trace_id, device, way, count(DISTINCT events) <= 1 AS is_alike
        FROM bursts
        GROUP BY run, trace_id, device, way
    )
    GROUP BY run, trace_id, device
),
ends AS (
    SELECT run, trace_id, device, max(end_ns) AS end_ns
    FROM gpu_events
    WHERE pattern <> '' AND is_timed(defect)
    GROUP BY run, trace_id, device
),
marked AS (
    SELECT
        b.run, b.collector, b.rank, b.part, b.trace_id, b.device, name, start_ns, event_id,
        row_number() OVER in_turn - 1 AS step,
        lead(start_ns, 1, ends.end_ns) OVER in_turn AS end_ns
    FROM bursts AS b
    JOIN ways USING (run, trace_id, device, way)
    JOIN ends USING (run, trace_id, device)
    WINDOW in_turn AS (PARTITION BY run, trace_id, device ORDER BY start_ns, event_id)
)
SELECT
    run, collector, rank, part, trace_id, step, device, start_ns, end_ns - start_ns AS dur_ns, end_ns,
    launch_start_ns, source, marker
FROM steps
WHERE pattern = ''
UNION ALL
SELECT
    run, collector, rank, part, trace_id, step, device, start_ns, end_ns - start_ns AS dur_ns, end_ns,
    launch_ns AS launch_start_ns, 'marker kernel' AS source, name AS marker
FROM marked
LEFT JOIN derived.gpu_launches USING (run, trace_id, event_id);
