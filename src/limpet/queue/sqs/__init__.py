"""A queue on Amazon SQS: `queue` has it, `claim` what was received, `client` requests and the form of messages."""

from limpet.queue.sqs.claim import SqsClaim, SqsTask
from limpet.queue.sqs.client import Message, Refusal, SqsClient
from limpet.queue.sqs.queue import SqsQueue, connect, names_of

__all__ = ["Message", "Refusal", "SqsClaim", "SqsClient", "SqsQueue", "SqsTask", "connect", "names_of"]
