"""Operations that upstream has removed from the API."""
