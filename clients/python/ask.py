#!/usr/bin/env python3
"""Asks a Layercake server a question and prints the answer as it comes.

    pip install -r requirements.txt
    ./ask.py --server 127.0.0.1:9180 "Why is the sky blue?"

The stubs are made from proto/layercake/v1 at the first run, in a temporary folder."""
import argparse
import importlib
import pathlib
import sys
import tempfile

import grpc
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"


def load_stubs(folder):
    """Generates and imports the messages and the client of the Inference service."""
    files = ["layercake/v1/types.proto", "layercake/v1/inference.proto"]
    if protoc.main(["protoc", f"-I{PROTO}", f"--python_out={folder}", f"--grpc_python_out={folder}",
                    *files]) != 0:
        sys.exit("cannot make the stubs")
    sys.path.insert(0, folder)
    return (importlib.import_module("layercake.v1.inference_pb2"),
            importlib.import_module("layercake.v1.inference_pb2_grpc"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:9180")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--raw", action="store_true", help="continue the text as it is")
    parser.add_argument("question")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        pb, services = load_stubs(folder)

    request = pb.GenerateRequest()
    if arguments.raw:
        request.text = arguments.question
    else:
        request.chat.messages.add(role="user", content=arguments.question)
    # A field that is not set means the server's default, which is not zero.
    if arguments.temperature is not None:
        request.sampling.temperature = arguments.temperature
    if arguments.max_tokens is not None:
        request.max_tokens = arguments.max_tokens

    with grpc.insecure_channel(arguments.server) as channel:
        try:
            for event in services.InferenceStub(channel).Generate(request):
                if event.HasField("delta"):
                    print(event.delta.text, end="", flush=True)
                elif event.HasField("finished"):
                    usage = event.finished.usage
                    print()
                    print(f"[{usage.prompt_tokens} + {usage.completion_tokens} tokens, "
                          f"{reason_of(event.finished)}]", file=sys.stderr)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")


def reason_of(finished):
    """FINISH_REASON_STOP -> stop."""
    field = finished.DESCRIPTOR.fields_by_name["reason"]
    name = field.enum_type.values_by_number[finished.reason].name
    return name.removeprefix("FINISH_REASON_").lower()


if __name__ == "__main__":
    main()
