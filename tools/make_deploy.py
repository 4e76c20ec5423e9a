"""Write deploy/terraform/policies/ from the table of roles: `.venv/bin/python tools/make_deploy.py`.

Each file is what `limpet iam --provider aws --role ROLE --bucket limpet-bucket --prefix limpet-prefix` prints. A test
compares them.
"""

from __future__ import annotations

import json
from pathlib import Path

from limpet.kernel.store.policies import Scope, aws_policy
from limpet.kernel.store.roles import ROLES

__all__ = ["FOLDER", "SCOPE", "main", "policies"]

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "terraform" / "policies"
SCOPE = Scope("limpet-bucket", "limpet-prefix")


def policies() -> dict[str, str]:
    """The policy of each role, by the name of its file."""
    return {f"{role}.json": json.dumps(aws_policy(role, SCOPE, conditional=True), indent=2) + "\n" for role in ROLES}


def main() -> None:
    """Write all policies."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in policies().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
