"""List the running sessions, page by page."""

from ai.backend.client.session import Session


def main() -> None:
    with Session() as api_session:
        offset = 0
        while True:
            page = api_session.ComputeSession.paginated_list("RUNNING", page_offset=offset, page_size=20)
            for item in page.items:
                print(item["name"], item["id"], item["image"])
            offset += len(page.items)
            if not page.items or offset >= page.total_count:
                break


if __name__ == "__main__":
    main()
