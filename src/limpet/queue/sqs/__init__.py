"""A queue on Amazon SQS: `queue` has the queue and its claims, `client` the requests and the form of messages."""

from limpet.queue.sqs.client import Message, Refusal, SqsClient
from limpet.queue.sqs.queue import SqsClaim, SqsQueue, SqsTask, connect, names_of

__all__ = ["Message", "Refusal", "SqsClaim", "SqsClient", "SqsQueue", "SqsTask", "connect", "names_of"]
