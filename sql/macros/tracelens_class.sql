-- tracelens_class: the class of a piece of GPU work as TraceLens sees it.
--
-- TraceLens' name rule, narrower than the rules of this project: DeepEP, MORI, MSCCL and symmetric memory are
-- computation in it. In this order: what the collector recorded as a copy, and the copy kernels of the ROCm
-- runtime, are memcpy; names that hold rccl, nccl or cross_device_reduce (in any case) are communication;
-- everything else, fills and memsets included, is computation.
CREATE OR REPLACE MACRO tracelens_class(kind, name) AS
CASE
    WHEN kind = 'memcpy' THEN 'memcpy'
    WHEN kind = 'kernel' AND regexp_full_match(name,
        '(MEMORY_COPY_(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)'
        || '|__amd_rocclr_copyBuffer(Rect)?(Aligned)?)(\.kd)?') THEN 'memcpy'
    WHEN contains(lower(name), 'nccl')
        OR contains(lower(name), 'rccl')
        OR contains(lower(name), 'cross_device_reduce') THEN 'communication'
    ELSE 'computation'
END;
