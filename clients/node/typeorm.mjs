import adapter from './typeorm.js';

export const { fencedRepository } = adapter;
export default adapter;
