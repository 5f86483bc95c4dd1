"""Whether a broker answers and keeps what it is given."""

import redis

from batchgen.local.check import Check

_TIMEOUT_S = 3
_MEND = (
    "start it, and see BATCHGEN_BROKER_URL; without it work goes on by polling, some seconds slower"
)


def broker_check(url: str) -> Check:
    """Whether it answers and cannot throw doorbells away for want of memory."""
    try:
        client = redis.Redis.from_url(
            url.replace("redis+socket://", "unix://", 1),
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
        )
        with client:
            memory = client.info("memory")
            evicted = int(client.info("stats")["evicted_keys"])
    except (redis.RedisError, OSError, ValueError) as error:
        return Check("broker", ok=False, detail=f"cannot be reached: {error}", mend=_MEND)
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    evicting = evicted > 0 or (policy != "noeviction" and int(memory.get("maxmemory", 0)) > 0)
    return Check(
        "broker",
        ok=not evicting,
        detail=f"answers; policy {policy}, {evicted} keys thrown away",
        mend="set maxmemory-policy to noeviction, or give it more memory",
    )
