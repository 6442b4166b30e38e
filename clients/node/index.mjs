import library from './index.js';

export const { Fences, FenceError } = library;
export default library;
