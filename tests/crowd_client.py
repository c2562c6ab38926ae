#!/usr/bin/env python3
"""Many clients of one server at once, over gRPC: some leave, some read slowly, and the others must
get what they would get alone. Prints one JSON object; tests/programs_test.py (Crowd) judges it.

    crowd_client.py ADDRESS --requests 500 --clients 128     texts, compared with solo runs
    crowd_client.py ADDRESS --requests 2000 --clients 128 --short   as fast as they go, nothing kept
"""
import argparse
import asyncio
import importlib.util
import json
import pathlib
import random
import tempfile

import grpc

ASK = pathlib.Path(__file__).resolve().parents[1] / "clients/python/ask.py"
WORDS = "the rain in spain stays mainly on a plain there".split()


def load_stubs(folder):
    spec = importlib.util.spec_from_file_location("ask", ASK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load_stubs(folder)


def make_request(pb, kind, short):
    """The same request for the same kind."""
    dice = random.Random(kind)
    words = 1 + dice.randrange(4 if short else 60)
    request = pb.GenerateRequest(text=" ".join(dice.choice(WORDS) for _ in range(words)))
    request.max_tokens = 2 if short else 4 + dice.randrange(40)
    request.sampling.temperature = 0.8
    request.sampling.seed = kind
    if not short and kind % 3 == 0:
        request.sampling.repetition_penalty = 1.2
    request.ignore_end_of_generation = True
    return request


async def answer(stub, request, leaves_after=None, pause=0.0):
    """Token ids; None when the client left."""
    call = stub.Generate(request)
    tokens = []
    finished = False
    async for event in call:
        if event.HasField("delta"):
            tokens.extend(event.delta.token_ids)
        finished = finished or event.HasField("finished")
        if leaves_after is not None and len(tokens) >= leaves_after:
            call.cancel()
            return None
        if pause:
            await asyncio.sleep(pause)
    if not finished:
        raise RuntimeError("a stream ended without Finished")
    return tokens


async def run(arguments, pb, services):
    dice = random.Random(arguments.seed)
    report = {"survivors": 0, "left": 0, "different": [], "errors": []}
    # A connection for every eight clients: a channel of its own for each would measure handshakes.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(arguments.address, options=options)
                for _ in range(max(1, arguments.clients // 8))]
    stubs = [services.InferenceStub(channel) for channel in channels]
    kinds = [make_request(pb, kind, arguments.short) for kind in range(25)]
    alone = []
    if not arguments.short:
        for kind in kinds:
            request = pb.GenerateRequest()
            request.CopyFrom(kind)
            request.use_prefix_cache = False
            alone.append(await answer(stubs[0], request))
    left_over = arguments.requests

    async def client(stub):
        nonlocal left_over
        while left_over > 0:
            left_over -= 1
            kind = dice.randrange(len(kinds))
            leaves = dice.randrange(20) if not arguments.short and dice.randrange(6) == 0 else None
            slow = not arguments.short and dice.randrange(25) == 0
            try:
                tokens = await answer(stub, kinds[kind], leaves, 0.05 if slow else 0.0)
            except (grpc.aio.AioRpcError, RuntimeError) as error:
                report["errors"].append(str(error))
                continue
            if tokens is None:
                report["left"] += 1
                continue
            report["survivors"] += 1
            if not arguments.short and tokens != alone[kind]:
                report["different"].append({"kind": kind, "got": tokens, "alone": alone[kind]})

    await asyncio.gather(*(client(stubs[i % len(stubs)]) for i in range(arguments.clients)))
    for channel in channels:
        await channel.close()
    report["errors"] = report["errors"][:5]
    report["different"] = report["different"][:5]
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pb, services = load_stubs(folder)
    print(json.dumps(asyncio.run(run(arguments, pb, services))))


if __name__ == "__main__":
    main()
