"""Judge as the webhook's processes do, except for jobs whose name says what is to go wrong."""

import os
import time

from elastic.api import KINDS
from elastic_training.controller.webhook.answers import AdmissionAnswer, Request
from elastic_training.controller.webhook.judge import confine, serve
from elastic_training.controller.webhook.review import answer


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
