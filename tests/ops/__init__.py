"""Operations of the extension."""
