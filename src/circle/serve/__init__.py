"""A local web page and a JSON API around one model file: ``circle serve pets.circle``.

    request ──► access ──► decoder process ──► writer: journal, then statistics ──► answer
                                          └──► predictor: newest snapshot      ──► answer

``service.py`` holds the parts together, ``model_store.py`` is the only place where anything learned changes.
"""
