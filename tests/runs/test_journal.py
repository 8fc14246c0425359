from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise import store
from poise.errors import Damaged, UserError
from poise.runs.journal import Journal, read_journal


class TestJournal:
    @staticmethod
    def events(path: Path) -> list[dict[str, Any]]:
        return list(read_journal(path))

    def test_rewind_returns_to_a_position_and_goes_on_from_there(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "j")
        journal.rewind(0)
        assert (journal.position(), self.events(journal.path)) == (0, [])
        journal.append({"n": 0})
        position = journal.position()
        assert position == len((tmp_path / "j").read_bytes())
        journal.append({"n": 1})
        journal.append({"n": 2})
        journal.rewind(position)
        assert self.events(journal.path) == [{"n": 0}]
        journal.append({"n": 3})
        assert self.events(journal.path) == [{"n": 0}, {"n": 3}]
        journal.close()

    @given(lost=st.integers(1, 14))
    def test_a_torn_last_line_is_left_out_and_cut_by_rewind(self, tmp_path_factory: Any, lost: int) -> None:
        path: Path = tmp_path_factory.mktemp("journal") / "j"
        journal = Journal(path)
        journal.append({"n": 0})
        position = journal.position()
        journal.append({"name": "größe"})
        journal.close()
        path.write_bytes(path.read_bytes()[:-lost])
        assert self.events(path) == [{"n": 0}]
        later = Journal(path)
        later.rewind(position)
        later.append({"n": 1})
        later.close()
        assert self.events(path) == [{"n": 0}, {"n": 1}]

    def test_a_journal_of_a_newer_format_is_refused(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "j")
        journal.append({"n": 0})
        journal.close()
        lines = journal.path.read_text().splitlines()
        assert json.loads(lines[0]) == {"journal": "poise", "format": store.PLAIN_FORMAT}
        journal.path.write_text(lines[0].replace(str(store.PLAIN_FORMAT), "99") + "\n")
        with pytest.raises(UserError, match="install a newer poise"):
            self.events(journal.path)

    def test_a_broken_line_in_the_middle_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "j").write_bytes(b'{"n": 0}\n{"n": \n{"n": 2}\n')
        with pytest.raises(Damaged, match="line 2 is not JSON"):
            self.events(tmp_path / "j")


class TestDigests:
    def test_the_digest_of_a_journal_is_that_of_its_bytes_wherever_it_was_asked_before(self, tmp_path: Path) -> None:
        journal, seen = Journal(tmp_path / "j"), list[tuple[int, str]]()
        for number in range(5):
            journal.append({"n": number})
            if number % 2:
                seen.append((journal.position(), journal.digest()))
        for position, digest in seen:
            part = (tmp_path / "j").read_bytes()[:position]
            assert digest == hashlib.blake2b(part, digest_size=16).hexdigest()
            journal.check(position, digest)
        journal.rewind(seen[0][0])
        assert journal.digest() == seen[0][1]
        journal.append({"n": "other"})
        with pytest.raises(Damaged, match="was changed since the checkpoint was written"):
            journal.check(*seen[1])  # it is shorter now
        journal.append({"n": "and more, so that it is as long"})
        with pytest.raises(Damaged, match="was changed since the checkpoint was written"):
            journal.check(*seen[1])
        journal.close()
