-- op_families: GPU time by the family of the operator that launched it.
--
-- One row is one family of operators. Families are rules on the operator's name (sql/rules/op_families.csv), tried in
-- order: what launched the work, not what kind of kernel it is. A runtime call that no operator is around, as bindings that
-- the profiler does not see make them, is 'launch_without_operator'; work whose launch was not recorded is
-- 'launch_not_recorded'. Times are those of op_summary, and the share is of all direct time.
--
-- Parameters:
--   link_rule (text: correlation|tracelens) = correlation: which launch a kernel belongs to, as in op_summary
-- Uses: tracelens_links, tracelens_calls when link_rule=tracelens; gpu_owners, gpu_launches when link_rule=correlation
-- Example: traceanalyzer query STORE op_families --rank 0
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   family (text): family of the launching operator
--   ops (count): how many different operators
--   calls (count, summed): calls that launched work other than collectives
--   events (count, summed): pieces of work that they launched, without collectives
--   direct_ns (ns, summed): time of the work that they launched themselves
--   subtree_ns (ns): the same with what operators within them launched, and collectives
--   share (share, summed): of the direct time of all operators
SELECT
    run, collector, rank, part, op_family(op) AS family, count(DISTINCT op) AS ops, count(*) AS calls,
    sum(events)::BIGINT AS events, sum(direct_ns)::BIGINT AS direct_ns, sum(subtree_ns)::BIGINT AS subtree_ns,
    sum(direct_ns) / NULLIF(sum(sum(direct_ns)) OVER (PARTITION BY run, collector, rank, part), 0) AS share
FROM launchers($link_rule)
GROUP BY run, collector, rank, part, family
ORDER BY run, collector, rank, part, direct_ns DESC, family
