-- modules: GPU time by nn.Module, forward and backward.
--
-- One row is one nn.Module (as the profiler numbers them: 'Linear_3') in one phase. In the forward pass, and where it is
-- computed again, the module is the innermost one around the launch; work of the backward pass belongs to the module in
-- which the forward operator with the same sequence number ran. What has none is module NULL. Times are sums of durations.
--
-- Empty: no work was launched by an operator
-- Example: traceanalyzer query STORE modules --rank 0
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   module (text): nn.Module; NULL where none is known, as without Python stacks
--   phase (text): 'forward', 'backward', 'recompute' or 'optimizer'; NULL where the operator is not known
--   events (count, summed): pieces of GPU work
--   total_ns (ns, summed): sum of their durations
--   share (share, summed): of the durations of all GPU work of the trace
WITH forward_modules AS (
    -- of the operators with one sequence number, the last one is the one that made the node
    SELECT run, trace_id, sequence_number, arg_max(module_event_id, start_ns) AS module_event_id
    FROM cpu_ops
    WHERE sequence_number >= 0
        AND node_event_id IS NULL
        AND module_event_id IS NOT NULL
    GROUP BY run, trace_id, sequence_number
),
node_modules AS (
    SELECT n.run, n.trace_id, n.event_id AS node_event_id, p.name
    FROM cpu_ops AS n
    JOIN forward_modules AS f ON f.run = n.run AND f.trace_id = n.trace_id AND f.sequence_number = n.sequence_number
    JOIN python_calls AS p ON p.run = f.run AND p.trace_id = f.trace_id AND p.event_id = f.module_event_id
    WHERE n.event_id = n.node_event_id
),
owned AS (
    SELECT
        o.run, o.collector, o.rank, o.part, o.phase, o.dur_ns,
        COALESCE(o.module, regexp_extract(m.name, '^nn.Module: (.*)$', 1)) AS module
    FROM kernel_owners AS o
    LEFT JOIN node_modules AS m
        ON m.run = o.run AND m.trace_id = o.trace_id AND m.node_event_id = o.node_event_id
    WHERE is_timed(o.defect)
)
SELECT
    run, collector, rank, part, module, phase, count(*) AS events, sum(dur_ns)::BIGINT AS total_ns,
    sum(dur_ns) / NULLIF(sum(sum(dur_ns)) OVER (PARTITION BY run, collector, rank, part), 0) AS share
FROM owned
GROUP BY run, collector, rank, part, module, phase
ORDER BY run, collector, rank, part, total_ns DESC, module, phase
