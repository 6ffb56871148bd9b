"""Journeys of people through the console. In each of them nothing on the console, no violation of the policy, no reply
of 400 or more and no request to another host is accepted but what the journey brings about."""

from __future__ import annotations

import pytest

from tests.browser.conftest import HOSTILE_TEXT, Journey
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.needs("chromium", "isolation"), pytest.mark.timeout(900)]


def test_newcomer(journey: Journey) -> None:
    journey("newcomer")


# Before the sessions that stay for the other journeys, which would leave no core for the one that waits here.
def test_an_operator(journey: Journey, session: str) -> None:
    journey("operator", session=session)


def test_folders(journey: Journey) -> None:
    journey("folders")


def test_what_users_keep_and_administrators_manage(journey: Journey) -> None:
    journey("belongings")


def test_services(journey: Journey, model: str) -> None:
    journey("services", model=model)


def test_a_model_and_a_template(journey: Journey, cluster: Cluster, hub: str) -> None:
    before = set(cluster.run("ps", "--name-only", check=True).stdout.split())
    try:
        journey("store", hub=hub)
    finally:  # its sessions would leave no core for those of other journeys
        cluster.run("rm", "--forced", *set(cluster.run("ps", "--name-only").stdout.split()) - before)


def test_two_people_and_a_folder(journey: Journey) -> None:
    journey("team")


def test_an_outage_in_mid_journey(journey: Journey, cluster: Cluster, session: str) -> None:
    facts = cluster.json("info", session)
    acts = {"kill": cluster.kill, "start": cluster.start}
    try:
        journey("outage", acts, session=facts["id"], called=session, image=facts["image"])
    finally:
        cluster.run("rm", "--forced", "after-outage")


def test_a_login_that_expires(journey: Journey) -> None:
    journey("expired")


def test_hostile_content(journey: Journey, hostile_session: str, hostile_folder: str) -> None:
    journey("hostile", hostile=hostile_session, folder=hostile_folder)


@pytest.mark.slow
def test_every_page_is_accessible(journey: Journey, hostile_session: str, hostile_folder: str) -> None:
    journey("pages", hostile=hostile_session, folder=hostile_folder, file=HOSTILE_TEXT)


@pytest.mark.slow
def test_a_person_from_the_first_login_to_the_purge(journey: Journey) -> None:
    journey("people")


@pytest.mark.slow
def test_every_page_of_operators_is_accessible(journey: Journey) -> None:
    journey("operator-pages")
