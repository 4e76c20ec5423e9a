"""The words of Celery, Huey, RQ, Dramatiq and SQS, and ours for them: what an error answers to a name of theirs.

A word is written as it is used: `.delay` an attribute or a name of a module, `countdown=` a keyword, `beat` a command,
`--autoscale` an option of a command. `WORDS` is the table of docs/use/from-celery.md too; nothing here does what the
words mean there. `answers` loads it when a name is not known.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from limpet.kernel.wording import listed, nearest


class ForeignName(NamedTuple):
    """Words with one meaning: Celery's, those of the others, and what is written here."""

    celery: str
    others: str
    ours: str


WORDS = tuple(
    ForeignName(*row)
    for row in (
        (".Celery broker= backend=", ".Huey .RedisHuey .SqliteHuey .Redis .RedisBroker .RabbitmqBroker connection=",
         '`limpet.open("s3://bucket/prefix")`: queue and results are in there'),
        (".task .shared_task", ".actor .job .db_task .remote",
         '`@fleet.task("enrich")`, of `fleet = limpet.open(...)`'),
        (".delay .apply .send_task", ".send .enqueue .enqueue_call .send_message",
         "`task.push(...)`, or `queue.push({...})` without a function"),
        (".apply_async", ".send_with_options .message_with_options .schedule .enqueue_in .enqueue_at",
         '`task.using(id="a.com", delay_s=60).push(...)`; `using(at=...)` for a time'),
        ("", ".enqueue_many .send_messages .send_message_batch", "`task.push_many([...])`: 100 tasks in an object"),
        ("countdown=", "delay= DelaySeconds=", "`delay_s=60`: `task.using(delay_s=60).push(...)`"),
        ("countdown=", "delay=", "`after_s=60` of `limpet.Retry`"),
        ("eta=", "scheduled_time=", "`at=datetime(..., tzinfo=UTC)`: `task.using(at=...).push(...)`"),
        ("task_id=", "job_id= message_id= MessageDeduplicationId=", '`id="a.com"`: `task.using(id=...).push(...)`'),
        ("priority=", "at_front= broker_priority=",
         "queues in order: `limpet work app:fleet -q urgent -q bulk`; there are no priorities in a queue"),
        ("", "message_group_id= MessageGroupId= group=",
         "a queue for each group, with `concurrency=1` where its tasks may not overlap"),
        ("queue= routing_key= exchange=", "queue_name= actor_name= QueueName=",
         'the name of the task, which is that of its queue: `@fleet.task("enrich")`'),
        ("rate_limit=", "max_concurrency=", "`rate_per_s=10`, for each process; `concurrency=4` over all processes"),
        ("max_retries=", "retries= retry= maxReceiveCount=", "`max_attempts=5`, which counts the first run too"),
        ("default_retry_delay= retry_backoff= retry_backoff_max= retry_jitter=",
         "retry_delay= min_backoff= max_backoff=", "`backoff_s=2`, which doubles up to `backoff_max_s=300`"),
        ("autoretry_for= dont_autoretry_for= retry_kwargs=", "retry_when= throws=",
         "leave it out: every exception retries, but for `limpet.Fail`"),
        (".retry", ".RetryTask .requeue", "`raise limpet.Retry(after_s=60)`"),
        (".Reject .Ignore requeue=", ".CancelExecution .DropJob", '`raise limpet.Fail("why")`'),
        ("bind= .request .retries", "context= .get_current_job .CurrentMessage",
         "`limpet.current_task()`, with `.id`, `.key` and `.attempt` (from 1)"),
        (".update_state", ".save_meta .meta", "`limpet.current_task().progress(...)`"),
        ("time_limit= soft_time_limit=", "timeout= job_timeout=",
         "`timeout_s=60`; `limpet.current_task().check()` ends a function that is late"),
        ("visibility_timeout=", "VisibilityTimeout= .change_message_visibility",
         "`ttl_s=60`: a claim that a living worker renews"),
        ("expires=", "ttl= max_age= expire_time=", "leave it out: a task waits until it runs, or `queue.cancel(id)`"),
        ("acks_late= reject_on_worker_lost=", "", "leave it out: a task is acknowledged when it has ended"),
        ("ignore_result= store_errors_even_if_ignored= result_expires=",
         "store_results= results= result_ttl= failure_ttl=", "`retention_s=`: results are kept for 30 days"),
        ("serializer= compression= typing=", "pickle=",
         "leave it out: payloads are JSON, checked against the annotations"),
        ("link= link_error= .link", "on_success= on_failure= depends_on= .on_complete",
         "`task.push(...).then(other)`; `other` gets the `Result`"),
        (".s .si .signature .subtask .chain .group .chord .chunks .map .starmap", ".pipeline .pipe",
         "`limpet.step`, `push_many` and `limpet.gather` in a [durable task](#chain-group-and-chord)"),
        (".get .join", ".blocking .return_value",
         "`pushed.result(wait_s=10).unwrap()`, which raises `TaskFailed`; `queue.wait(ids, timeout_s=10)`"),
        (".AsyncResult", ".fetch_job .get_result .result_store", "`queue.result(id)`, or `task.queue.result(id)`"),
        ("", "timeout= blocking_timeout= WaitTimeSeconds=", "`wait_s=10`"),
        (".status .successful", ".is_finished .is_failed .get_status", "`result.state`, `result.ok`, `result.ready`"),
        (".crontab .add_periodic_task beat_schedule= run_every=", ".periodic_task .cron",
         '`@fleet.task(cron="0 * * * *")`: the workers push it, in UTC or `cron_zone="Europe/Berlin"`'),
        (".task_always_eager .always_eager", "immediate= is_async= .StubBroker",
         "`with limpet.testing.eager(fleet):`"),
        (".on_after_configure .task_success .task_failure", ".pre_execute .post_execute .on_startup",
         "`@fleet.on_start`, `on_done`, `on_retry`, `on_fail`"),
        (".revoke .abort .terminate", ".cancel .is_revoked .delete_job", "`queue.cancel(id)`"),
        (".discard_all", ".empty .flush .purge_queue", "`queue.purge()`"),
        (".worker_main .Worker", ".SimpleWorker .Consumer .create_consumer", "`limpet work app:fleet`"),
        ("", ".receive_message .receive_messages .dequeue", "`with queue.claim() as claim:`, or `limpet work`"),
        ("", ".delete_message .delete_messages .ack", "`task.done()`, of a task in a claim"),
        ("", ".nack .reject", "`task.retry()` or `task.fail(error)`, of a task in a claim"),
        ("", ".jobs .job_ids .count .pending .get_queue_attributes .ApproximateNumberOfMessages",
         "`queue.stats()`, `queue.peek()`"),
        ("", ".lock_task expire= timeout= .ConcurrentRateLimiter",
         "`fleet.lock(name, ttl_s=60)`; `concurrency=1` of a task"),
        ("worker multi -A --app", "consumer run start worker-pool", "`limpet work app:fleet`"),
        ("-c --concurrency --autoscale", "-w --workers", "`-p 8` processes, `-t 8` threads each"),
        ("-Q --queues", "--queue-name", "`-q NAME`, once for each, the urgent one first"),
        ("-P --pool", "-k --worker-type", "`-p 8` processes, `-t 8` threads; async functions share a loop"),
        ("--max-memory-per-child", "--max-jobs", "`--max-tasks-per-child N`"),
        ("-l --loglevel", "-v --verbose --logfile", "`--quiet`, or `--log json`"),
        ("-E --task-events", "", "`--events`"),
        ("", "--watch", "`--reload`"),
        ("beat -B --beat", "scheduler --with-scheduler", "leave it out: the workers push what `cron=` names"),
        ("-D --detach --pidfile", "--daemon", "a unit of systemd, or a container: `deploy/` has both"),
        ("--countdown --eta", "--delay-seconds", "`--delay 60s`"),
        ("--task-id", "--job-id", "`--id NAME`"),
        ("--priority", "", "queues in order: `limpet work app:fleet -q urgent -q bulk`"),
        ("", "acquire", "`limpet lock run NAME -- COMMAND`"),
        (".conf .config_from_object .autodiscover_tasks", "",
         "keywords of `limpet.open` and `@fleet.task`; `limpet work app:fleet` imports the module"),
        ("call", "enqueue send", "`limpet queue push QUEUE JSON`"),
        ("flower inspect", "rq-dashboard monitor info", "`limpet status`, `limpet top`, `limpet ui`, `limpet workers`"),
        ("revoke", "abort", "`limpet queue cancel QUEUE ID`"),
        ("result", "job", "`limpet queue show QUEUE ID`"),
        ("control", "requeue redrive", "`limpet queue retry`, `pause`, `resume`, `cancel`"),
        ("shell", "python", "`python`, and `import limpet` in it"),
        ("upgrade-settings", "init create new", "leave it out: the first push makes a fleet, `limpet queue push`"),
        ("help", "version", "`limpet --help`, `limpet COMMAND --help`, `limpet --version`"),
        ("", "empty clear", "`limpet queue purge QUEUE`"),
    )
)  # fmt: skip


@cache
def _by_word() -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for row in WORDS:
        for word in f"{row.celery} {row.others}".split():
            table.setdefault(word, []).append(plain(row.ours))
    return table


def plain(text: str) -> str:
    """The text without the addresses of its links."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def ours_for(word: str, names: Collection[str] = ()) -> str | None:
    """What is written here for a word of theirs; of several the one that mentions one of the names that are known."""
    answers = _by_word().get(word) or _by_word().get(word.lower()) or []
    mention = (
        each
        for each in answers
        if any(re.search(rf"`{re.escape(name)}\b|[ (]{re.escape(name)}=", each) for name in names)
    )
    return next(mention, answers[0] if answers else None)


def hint_for(word: str, name: str, names: Collection[str]) -> str:
    """The hint for a name that is not known: ours for a word of theirs, else the nearest of ours, else all of them."""
    ours = ours_for(word, names)
    if ours is not None:
        return f"in Limpet: {ours}"
    near = nearest(name, names)
    return f"did you mean {near!r}?" if near else listed(sorted(names))
