-- op_summary: GPU time by the operator that launched it.
--
-- One row is one operator's name; a runtime call that no operator is around stands for itself, and work whose launch was
-- not recorded is operator NULL. Direct time is the union of what one call of the operator launched itself, subtree time
-- also of what operators within it launched, summed over the calls; within a call overlapping kernels count once.
-- Collectives are left out of direct time, and counted in subtree time, as TraceLens does. The share is of all direct time.
--
-- link_rule=tracelens links as TraceLens does (see tracelens_links), drops what it drops, and knows collectives by
-- TraceLens' names: then this is its sheet ops_summary.
--
-- Parameters:
--   link_rule (text: correlation|tracelens) = correlation: which launch a kernel belongs to
-- Uses: tracelens_links, tracelens_calls when link_rule=tracelens; gpu_owners, gpu_launches when link_rule=correlation
-- Example: traceanalyzer query STORE op_summary --rank 0
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   op (text): name of the operator, or of the runtime call where there is none; NULL where no launch was recorded
--   calls (count, summed): calls of the operator that launched work other than collectives
--   events (count, summed): pieces of work that it launched, without collectives
--   direct_ns (ns, summed): time of the work that it launched itself
--   subtree_ns (ns): the same with what operators within it launched, and collectives
--   share (share, summed): of the direct time of all operators
WITH linked AS (
    -- the call and the operators around it, outermost first
    SELECT
        e.run, e.collector, e.rank, e.part, e.trace_id, e.start_ns, e.end_ns,
        CASE $link_rule WHEN 'tracelens' THEN l.tracelens_runtime_event_id ELSE e.runtime_event_id END AS call_event_id,
        CASE $link_rule WHEN 'tracelens' THEN t.tracelens_path ELSE g.op_path END AS op_path,
        CASE $link_rule WHEN 'tracelens' THEN e.tracelens_class ELSE e.class END = 'communication' AS communicates
    FROM gpu_events AS e
    LEFT JOIN derived.gpu_owners AS g ON g.run = e.run AND g.trace_id = e.trace_id AND g.event_id = e.event_id
    LEFT JOIN derived.tracelens_links AS l ON l.run = e.run AND l.trace_id = e.trace_id AND l.event_id = e.event_id
    LEFT JOIN derived.tracelens_calls AS t
        ON t.run = l.run AND t.trace_id = l.trace_id AND t.event_id = l.tracelens_runtime_event_id
    WHERE is_timed(e.defect)
        AND ($link_rule = 'correlation' OR l.tracelens_runtime_event_id IS NOT NULL)
),
placed AS (
    SELECT
        run, collector, rank, part, trace_id, start_ns, end_ns, communicates,
        COALESCE(op_path[-1], call_event_id, -1) AS launcher,
        CASE WHEN len(op_path) > 0 THEN op_path ELSE [COALESCE(call_event_id, -1)] END AS path
    FROM linked
),
launchers AS (
    SELECT run, trace_id, launcher, any_value(collector) AS collector, any_value(rank) AS rank, any_value(part) AS part
    FROM placed
    WHERE NOT communicates
    GROUP BY run, trace_id, launcher
),
direct AS (
    SELECT
        run, trace_id, launcher, count(*) AS events,
        sum(GREATEST(end_ns - GREATEST(start_ns, COALESCE(before_ns, start_ns)), 0)) AS direct_ns
    FROM (
        SELECT
            run, trace_id, launcher, start_ns, end_ns,
            max(end_ns) OVER (
                PARTITION BY run, trace_id, launcher ORDER BY start_ns, end_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before_ns
        FROM placed
        WHERE NOT communicates
    )
    GROUP BY run, trace_id, launcher
),
subtree AS (
    SELECT
        run, trace_id, launcher,
        sum(GREATEST(end_ns - GREATEST(start_ns, COALESCE(before_ns, start_ns)), 0)) AS subtree_ns
    FROM (
        SELECT
            run, trace_id, launcher, start_ns, end_ns,
            max(end_ns) OVER (
                PARTITION BY run, trace_id, launcher ORDER BY start_ns, end_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before_ns
        FROM (SELECT run, trace_id, unnest(path) AS launcher, start_ns, end_ns FROM placed)
        SEMI JOIN launchers USING (run, trace_id, launcher)
    )
    GROUP BY run, trace_id, launcher
),
names AS (
    SELECT run, trace_id, event_id AS launcher, name FROM cpu_ops
    UNION ALL
    SELECT run, trace_id, event_id AS launcher, name FROM runtime_calls
)
SELECT
    run, collector, rank, part, name AS op, count(*) AS calls, sum(events)::BIGINT AS events,
    sum(direct_ns)::BIGINT AS direct_ns, sum(subtree_ns)::BIGINT AS subtree_ns,
    sum(direct_ns) / NULLIF(sum(sum(direct_ns)) OVER (PARTITION BY run, collector, rank, part), 0) AS share
FROM launchers
JOIN direct USING (run, trace_id, launcher)
JOIN subtree USING (run, trace_id, launcher)
LEFT JOIN names USING (run, trace_id, launcher)
GROUP BY run, collector, rank, part, name
ORDER BY run, collector, rank, part, direct_ns DESC, op
