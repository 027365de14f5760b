-- launchers: each call of an operator that launched GPU work, with the time of that work, as a table.
--
-- One row is one call of an operator, or a runtime call that no operator is around, that launched work other than
-- collectives; all work of a trace whose launch was not recorded is one row, with launcher -1. `link_rule` is 'correlation',
-- or 'tracelens' for the links, the host tree and the collectives of TraceLens, which drops what it does not link.
-- Direct time is the union of what the call launched itself, without collectives; subtree time also of what operators
-- within it launched, and collectives.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   launcher (number): event_id of the operator or call, -1 where no launch was recorded
--   op (text): name of the operator or call, NULL where no launch was recorded
--   input_dims (JSON): shapes of the operator's inputs
--   input_types (JSON): types of the operator's inputs
--   input_strides (JSON): strides of the operator's inputs
--   concrete_inputs (JSON): values of the operator's inputs that are no tensors
--   events (count): pieces of work that it launched itself, without collectives
--   direct_ns (ns): time of these
--   subtree_ns (ns): the same with what operators within it launched, and collectives
CREATE OR REPLACE MACRO launchers(link_rule) AS TABLE
WITH linked AS (
    -- the call and the operators around it, outermost first
    SELECT
        e.run, e.collector, e.rank, e.part, e.trace_id, e.start_ns, e.end_ns,
        CASE link_rule WHEN 'tracelens' THEN l.tracelens_runtime_event_id ELSE e.runtime_event_id END AS call_event_id,
        CASE link_rule WHEN 'tracelens' THEN t.tracelens_path ELSE g.op_path END AS op_path,
        CASE link_rule WHEN 'tracelens' THEN e.tracelens_class ELSE e.class END = 'communication' AS communicates
    FROM gpu_events AS e
    LEFT JOIN derived.gpu_owners AS g ON g.run = e.run AND g.trace_id = e.trace_id AND g.event_id = e.event_id
    LEFT JOIN derived.tracelens_links AS l ON l.run = e.run AND l.trace_id = e.trace_id AND l.event_id = e.event_id
    LEFT JOIN derived.tracelens_calls AS t
        ON t.run = l.run AND t.trace_id = l.trace_id AND t.event_id = l.tracelens_runtime_event_id
    WHERE is_timed(e.defect)
        AND (link_rule = 'correlation' OR l.tracelens_runtime_event_id IS NOT NULL)
),
placed AS (
    SELECT
        run, collector, rank, part, trace_id, start_ns, end_ns, communicates,
        COALESCE(op_path[-1], call_event_id, -1) AS launcher,
        CASE WHEN len(op_path) > 0 THEN op_path ELSE [COALESCE(call_event_id, -1)] END AS path
    FROM linked
),
owners AS (
    SELECT run, trace_id, launcher, any_value(collector) AS collector, any_value(rank) AS rank, any_value(part) AS part
    FROM placed
    WHERE NOT communicates
    GROUP BY run, trace_id, launcher
),
spans AS (
    SELECT run, trace_id, launcher, true AS is_direct, start_ns, end_ns
    FROM placed
    WHERE NOT communicates
    UNION ALL
    SELECT run, trace_id, launcher, false AS is_direct, start_ns, end_ns
    FROM (SELECT run, trace_id, unnest(path) AS launcher, start_ns, end_ns FROM placed)
    SEMI JOIN owners USING (run, trace_id, launcher)
),
times AS (
    -- unions: of each span only what lies behind the ends of all before it
    SELECT
        run, trace_id, launcher, count(*) FILTER (is_direct) AS events,
        sum(length_ns) FILTER (is_direct) AS direct_ns, sum(length_ns) FILTER (NOT is_direct) AS subtree_ns
    FROM (
        SELECT
            run, trace_id, launcher, is_direct,
            GREATEST(end_ns - GREATEST(start_ns, COALESCE(max(end_ns) OVER before, start_ns)), 0) AS length_ns
        FROM spans
        WINDOW before AS (
            PARTITION BY run, trace_id, launcher, is_direct ORDER BY start_ns, end_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    )
    GROUP BY run, trace_id, launcher
),
names AS (
    SELECT run, trace_id, event_id AS launcher, name, input_dims, input_types, input_strides, concrete_inputs
    FROM cpu_ops
    UNION ALL BY NAME
    SELECT run, trace_id, event_id AS launcher, name
    FROM runtime_calls
)
SELECT
    run, collector, rank, part, trace_id, launcher, name AS op, input_dims, input_types, input_strides, concrete_inputs,
    events, direct_ns, subtree_ns
FROM owners
JOIN times USING (run, trace_id, launcher)
LEFT JOIN names USING (run, trace_id, launcher);
