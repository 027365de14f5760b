-- steps: the training steps of a trace, found in one of four ways.
--
-- One row is one step; of steps found by a marker kernel, one step of one device. The first way that finds any counts:
-- 1. ProfilerStep: the PyTorch profiler's annotations `ProfilerStep#N`.
-- 2. annotation: host ranges (record_function, roctx) that are called step, iteration or batch, with or without a number.
--    Of several such names the first of these words wins, then the one with the fewest ranges.
-- 3. marker kernel: a kernel that comes once per step, or in one burst per step. Every kernel whose bursts are alike in
--    size and distance, counted in kernels, proposes a period; the one wins in which most kernels come equally often in
--    every period, and of those nearly as good the shortest; where an optimizer's kernels are known, one with as many
--    periods as it ran comes first, and only periods that have them count. A step begins with the first kernel of that period, or before it with what came in the same
--    order before all of its kernels.
-- 4. whole trace: one step.
-- Host ranges tell when a step began on the host, kernels when on the device.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   step (number): number of the step: as the annotation says it, else counted from 0
--   device (number): the device on which a marker kernel was found, NULL where the step is that of all devices
--   start_ns (ns): start on the trace's own clock
--   end_ns (ns): end of the range; of others the start of the next step, or the end of the last event
--   launch_start_ns (ns): start of the call that launched the step's first kernel; of ranges, start_ns
--   source (text): 'ProfilerStep', 'annotation', 'marker kernel' or 'whole trace'
--   marker (text): the annotation or kernel that marks the steps, NULL for 'whole trace'
WITH names AS MATERIALIZED (
    -- names are long, and compared often
    SELECT name, bool_or(category = 'optimizer') AS is_optimizer, row_number() OVER () AS name_id
    FROM derived.kernel_names
    GROUP BY name
),
work AS MATERIALIZED (
    SELECT
        device, name_id, start_ns, start_ns + dur_ns AS end_ns, correlation_id,
        row_number() OVER (PARTITION BY device ORDER BY start_ns, event_id) AS position
    FROM raw.gpu_events
    JOIN names ON names.name IS NOT DISTINCT FROM gpu_events.name
    LEFT JOIN derived.gpu_corrections AS c USING (run, trace_id, event_id)
    WHERE is_timed(COALESCE(gpu_events.defect, c.defect))
),

-- 1 and 2: ranges on the host

ranges AS (
    SELECT
        name, start_ns, start_ns + dur_ns AS end_ns,
        TRY_CAST(regexp_extract(name, '(\d+)\D*$', 1) AS BIGINT) AS number,
        CASE
            WHEN starts_with(name, 'ProfilerStep#') THEN 0
            WHEN regexp_matches(name, '^\W*(training|train)?[ _:.-]*step\b[ _:=#-]*\d*\W*$', 'i') THEN 1
            WHEN regexp_matches(name, '^\W*(training|train)?[ _:.-]*step_?\d+\W*$', 'i') THEN 1
            WHEN regexp_matches(name, '^\W*(training|train)?[ _:.-]*iter(ation)?[ _:=#-]*\d*\W*$', 'i') THEN 2
            WHEN regexp_matches(name, '^\W*(training|train)?[ _:.-]*batch[ _:=#-]*\d*\W*$', 'i') THEN 3
        END AS word
    FROM raw.annotations
    WHERE side = 'cpu' AND dur_ns > 0
),
spellings AS (
    SELECT word, regexp_replace(name, '\d+', 'N') AS marker, count(*) AS ranges, min(start_ns) AS first_ns
    FROM ranges
    WHERE word IS NOT NULL
    GROUP BY ALL
    ORDER BY word, ranges, first_ns
    LIMIT 1
),
annotated AS (
    SELECT
        -- a number that stands twice counts nothing
        CASE WHEN count(number) OVER () = count(*) OVER () AND count(*) OVER (PARTITION BY number) = 1
            THEN number ELSE row_number() OVER (ORDER BY start_ns, end_ns) - 1 END AS step,
        NULL::BIGINT AS device, start_ns, end_ns, start_ns AS launch_start_ns,
        CASE word WHEN 0 THEN 'ProfilerStep' ELSE 'annotation' END AS source, marker
    FROM ranges
    JOIN spellings USING (word)
    WHERE regexp_replace(name, '\d+', 'N') = marker
),

-- 3: kernels that come once per step. Nothing of it is computed where there are ranges.

spaced AS (
    SELECT device, name_id, position, position - lag(position) OVER same_name AS gap
    FROM work
    WHERE NOT EXISTS (FROM annotated)
    WINDOW same_name AS (PARTITION BY device, name_id ORDER BY position)
),
limits AS (
    -- Gaps are counted in kernels, so that pauses do not matter. A burst begins behind more than half of the longest gap,
    -- or where that is an exception, of a usual one: of what nine of ten do not exceed, or half of them.
    SELECT device, name_id, unnest(quantile_disc(gap, [1, 0.9, 0.5])) / 2 AS least_gap, unnest([1, 2, 3]) AS way
    FROM spaced
    GROUP BY device, name_id
    HAVING count(*) >= 2
),
bursts AS (
    SELECT
        device, name_id, way, position,
        position - lag(position) OVER in_turn AS distance,
        lead(occurrence) OVER in_turn - occurrence AS events
    FROM (
        SELECT
            device, name_id, way, position, gap, least_gap,
            row_number() OVER (PARTITION BY device, name_id, way ORDER BY position) AS occurrence
        FROM spaced
        JOIN limits USING (device, name_id)
    )
    WHERE gap IS NULL OR gap > least_gap
    WINDOW in_turn AS (PARTITION BY device, name_id, way ORDER BY position)
),
regular AS (
    -- an optimizer's kernels propose a period however far apart they are, since evaluations may lie in between
    SELECT
        device, name_id, way, count(*) AS periods, min(position) AS first_position, any_value(is_optimizer) AS is_optimizer
    FROM (
        SELECT
            device, name_id, way, position, distance, events,
            median(distance) OVER this_name AS usual_distance,
            mode(events) OVER this_name AS usual_events
        FROM bursts
        WINDOW this_name AS (PARTITION BY device, name_id, way)
    )
    JOIN names USING (name_id)
    GROUP BY device, name_id, way
    HAVING count(*) >= 2
        AND (
            COALESCE(avg((distance BETWEEN usual_distance / 2 AND usual_distance * 2)::INT), 0) >= 0.75
            OR any_value(is_optimizer)
        )
        AND COALESCE(avg((events = usual_events)::INT), 1) >= 0.75
),
proposals AS (
    -- the most common numbers of periods, each by the name that comes first, with at least 8 events per period
    SELECT device, periods, arg_min(name_id, first_position) AS name_id, arg_min(way, first_position) AS way
    FROM regular
    JOIN (SELECT device, count(*) AS events FROM work GROUP BY device) USING (device)
    WHERE periods * 8 <= events
    GROUP BY device, periods
    QUALIFY row_number() OVER (
        PARTITION BY device ORDER BY bool_or(is_optimizer) DESC, count(DISTINCT name_id) DESC, periods DESC
    ) <= 8
),
edges AS (
    SELECT device, periods, position, row_number() OVER (PARTITION BY device, periods ORDER BY position) AS period
    FROM bursts
    JOIN proposals USING (device, name_id, way)
),
counted AS (
    -- what comes before the first edge belongs to the last period: a trace of whole steps can begin anywhere in one
    SELECT device, periods, w.name_id, COALESCE(period, periods) AS period, count(*) AS events
    FROM (SELECT w.*, periods FROM work AS w JOIN proposals USING (device)) AS w
    ASOF LEFT JOIN edges AS e USING (device, periods, position)
    GROUP BY ALL
),
judged AS (
    -- In how many periods a name comes as often as it usually does, on average over the names: 1 where all do, 0 where
    -- every name is in one period or differs in all. And in how many an optimizer ran, if any kernel is one's.
    SELECT
        device, periods, avg((usual_periods - 1) / (periods - 1)) AS constancy,
        max(present_periods) FILTER (is_optimizer) / periods AS with_optimizer
    FROM (
        SELECT device, periods, name_id, max(equal_periods) AS usual_periods, sum(equal_periods) AS present_periods
        FROM (
            SELECT device, periods, name_id, events, count(*) AS equal_periods
            FROM counted
            GROUP BY ALL
        )
        GROUP BY device, periods, name_id
    )
    JOIN names USING (name_id)
    GROUP BY device, periods
),
most_constant AS (
    SELECT device, max(periods) AS periods, any_value(most) AS most
    FROM judged
    JOIN (
        SELECT device, max(constancy) AS most
        FROM judged
        WHERE COALESCE(with_optimizer >= 0.8, true)
        GROUP BY device
    ) USING (device)
    WHERE constancy >= most - 0.005
        AND constancy >= 0.5
        AND COALESCE(with_optimizer >= 0.8, true)
    GROUP BY device
),
updates AS (
    -- how often an optimizer ran: its kernels come together
    SELECT device, count(*) AS updates
    FROM (
        SELECT device, position - lag(position) OVER (PARTITION BY device ORDER BY position) AS gap
        FROM work
        JOIN names USING (name_id)
        WHERE is_optimizer
    )
    WHERE gap IS NULL OR gap > 20
    GROUP BY device
),
by_updates AS (
    SELECT device, arg_max(periods, constancy) AS periods
    FROM judged
    JOIN updates USING (device)
    WHERE periods BETWEEN 0.9 * updates AND 1.1 * updates
        AND constancy >= 0.3
    GROUP BY device
),
best AS (
    -- As many as an optimizer ran, if there is such a period. Else: a period of two steps is as constant as that of one,
    -- and more so where something comes every second step; so one that divides the most constant one counts if it is
    -- nearly as constant. Where an optimizer is known, a period without it is a part of a step, and "nearly" can be generous.
    SELECT device, COALESCE(any_value(u.periods), max(j.periods)) AS periods
    FROM judged AS j
    LEFT JOIN by_updates AS u USING (device)
    LEFT JOIN most_constant AS m USING (device)
    WHERE u.periods IS NOT NULL
        OR j.periods = m.periods
        OR (
            j.periods >= 1.5 * m.periods
            AND abs(j.periods / m.periods - round(j.periods / m.periods)) <= 0.15
            AND constancy >= most - CASE WHEN with_optimizer IS NULL THEN 0.02 ELSE 0.1 END
            AND COALESCE(with_optimizer >= 0.8, true)
        )
    GROUP BY device
),
marker AS (
    SELECT device, name_id, way, periods
    FROM proposals
    JOIN best USING (device, periods)
),
marks AS (
    SELECT
        device, name_id, position,
        row_number() OVER (PARTITION BY device ORDER BY position) - 1 AS step,
        min(position) OVER (PARTITION BY device) AS first_position
    FROM bursts
    JOIN marker USING (device, name_id, way)
),
lengths AS (
    -- events in a usual step, and behind the last mark
    SELECT device, median(events) AS usual_events, max(work_events - position + 1) FILTER (events IS NULL) AS last_events
    FROM (
        SELECT device, position, lead(position) OVER (PARTITION BY device ORDER BY step) - position AS events
        FROM marks
    )
    JOIN (SELECT device, count(*) AS work_events FROM work GROUP BY device) USING (device)
    GROUP BY device
),
shorter AS (
    -- how many events before its first mark a step has: until one differs from what comes before another mark
    SELECT device, COALESCE(min(back) FILTER (differs), max(back) + 1) - 1 AS events
    FROM (
        SELECT
            m.device, first_position - head.position AS back,
            count(*) <> any_value(marks_of.n) OR count(DISTINCT w.name_id) <> 1 OR min(w.name_id) <> any_value(head.name_id)
                AS differs
        FROM marks AS m
        JOIN (SELECT device, count(*) AS n FROM marks GROUP BY device) AS marks_of USING (device)
        JOIN lengths AS u ON u.device = m.device
        JOIN work AS head
            ON head.device = m.device
            AND head.position BETWEEN m.first_position - u.usual_events AND m.first_position - 1
        JOIN work AS w ON w.device = m.device AND w.position = m.position - (m.first_position - head.position)
        GROUP BY m.device, head.position, m.first_position
    )
    GROUP BY device
),
begun AS (
    -- not where the last step, begun as much earlier, would be longer than a step
    SELECT
        m.device, m.step, m.name_id,
        m.position - CASE WHEN s.events + last_events <= 1.05 * usual_events THEN s.events ELSE 0 END AS position
    FROM marks AS m
    LEFT JOIN shorter AS s USING (device)
    JOIN lengths USING (device)
),
launches AS (
    SELECT correlation_id, min(start_ns) AS start_ns
    FROM raw.runtime_calls
    WHERE correlation_id > 0
    GROUP BY correlation_id
),
ends AS (
    SELECT device, max(end_ns) AS end_ns
    FROM work
    GROUP BY device
),
marked AS (
    SELECT
        step, device, w.start_ns,
        lead(w.start_ns, 1, ends.end_ns) OVER (PARTITION BY device ORDER BY step) AS end_ns,
        l.start_ns AS launch_start_ns, 'marker kernel' AS source, names.name AS marker
    FROM begun
    JOIN names USING (name_id)
    JOIN work AS w USING (device, position)
    JOIN ends USING (device)
    LEFT JOIN launches AS l USING (correlation_id)
),
found AS (
    FROM annotated
    UNION ALL
    FROM marked
    UNION ALL
    -- 4: devices of which nothing is known, or all
    SELECT
        0 AS step, device, min(start_ns) AS start_ns, max(end_ns) AS end_ns, NULL AS launch_start_ns,
        'whole trace' AS source, NULL AS marker
    FROM work
    WHERE NOT EXISTS (FROM annotated)
        AND device NOT IN (SELECT device FROM marked)
    GROUP BY device
)
SELECT
    run, collector, rank, part, trace_id, step::BIGINT AS step, device::BIGINT AS device,
    start_ns, end_ns, launch_start_ns, source, marker
FROM found
CROSS JOIN (SELECT run, collector, rank, part, trace_id FROM raw.traces)
ORDER BY device, start_ns
