/*
 * domain/suggestion.h
 *	  Which of the names that exist a caller may have meant.
 */
#ifndef FENCE_SUGGESTION_H
#define FENCE_SUGGESTION_H

/*
 * Returns a hint, palloc'd, for a caller who has named nothing: the names in this table of the extension (its column
 * "name") that are nearest to his, quoted; or `otherwise` if none is near.
 */
extern char *suggestion(const char *table, const char *name, const char *otherwise);

#endif
