"""Judge as the webhook's processes do, except for jobs whose name says what is to go wrong."""

import os
import time

from controller.webhook.answers import AdmissionAnswer, Request
from controller.webhook.judge import confine, serve
from controller.webhook.review import answer
from elastic.api import KINDS


def judge(request: Request) -> AdmissionAnswer:
    match request.name.partition("-")[0]:
        case "slow":
            time.sleep(float(request.name.partition("-")[2]))
        case "dies":
            os._exit(3)
        case "hoards":
            bytearray(4 * 1024**3)
    return answer(request, kinds=KINDS, namespace=None)


if __name__ == "__main__":
    confine()
    serve(judge)
