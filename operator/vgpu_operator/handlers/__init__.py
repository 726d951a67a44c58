"""Kopf's handlers: admission reviews in, pure functions asked, answers out."""
