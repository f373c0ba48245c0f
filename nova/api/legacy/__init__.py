"""Operations that OpenStack has removed from the API."""
